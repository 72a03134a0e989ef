"""Races between kvring's threads, searched for by loom and shuttle in models of its code.

Arguments: parts of the names of models that are to run; without any, all do. A schedule of shuttle
that failed is run again with

    KVRING_MODEL_SCHEDULE=FILE python -m tools models NAME

Planted bugs are in tools/planted/models-KIND-what-is-wrong.patch, where KIND is the tool that
finds them. One that few orders show names its model ("Found by: NAME"), which alone is searched
then, and for longer. src/models says how models are written.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tools.planted import built_in, patches_of, tree_with
from tools.tool import OUTPUT, REPOSITORY, BuildError, Options, Report, call

KINDS = ("loom", "shuttle")

# Tests of a build for models that are models.
MODELS = (
    "models::",
    "connector::gate::tests::",
    "index::file::changes::tests::models::",
    "index::memory::map::tests::readers::",
    "reactor::health::tests::models_",
)

# Models that run at the same time.
THREADS = 2

# What seldom changes is optimized, the rest is built anew for each planted bug.
QUICK_TO_BUILD = ("--config", "profile.dev.package.kvring.opt-level=0")

# What a planted bug gets, of each model: most are found in a fraction of a second.
PLANTED_SECONDS = 2.0

# What one gets that few orders show, of its own model: the search ends with the first of them.
RARE_SECONDS = 60.0

# A model that does not come back is a finding too.
MOST_SECONDS_MORE = 300

_COUNT = re.compile(r"^(?:test \S+ \.\.\. )?model (\S+): (\d+) orders", re.MULTILINE)
_FAILED = re.compile(r"^    (\S+)$", re.MULTILINE)
_FOUND_BY = re.compile(r"^Found by: (\S+)$", re.MULTILINE)
_SCHEDULE = re.compile(r"persisted to file: (\S+)")


def run(options: Options) -> Report:
    """Run the models, or find planted bugs with them."""
    return _find_planted(options) if options.planted else _search(options)


def _environment(kind: str, tree: Path) -> dict[str, str]:
    schedules = OUTPUT / "models" / "schedules"
    schedules.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    return {
        "RUSTFLAGS": f'--cfg kvring_model="{kind}"',
        "CARGO_TARGET_DIR": str(built_in(OUTPUT / "models" / kind, tree)),
        "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "KVRING_MODEL_FAILURES": str(schedules),
        **({"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {}),
    }


def _cargo(
    kind: str,
    arguments: list[str],
    *,
    tree: Path,
    log: str,
    environment: dict[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    return call(
        ["cargo", *QUICK_TO_BUILD, "test", "--locked", "--lib", *arguments],
        log=OUTPUT / "models" / log,
        environment={**_environment(kind, tree), **(environment or {})},
        directory=tree,
        timeout_s=timeout_s,
    )


def _build(kind: str, tree: Path) -> bool:
    return _cargo(kind, ["--no-run"], tree=tree, log=f"{kind}-build.log").returncode == 0


def _models_of(kind: str, parts: tuple[str, ...]) -> list[str]:
    listed = _cargo(kind, ["--", "--list"], tree=REPOSITORY, log=f"{kind}-list.log").stdout
    names = re.findall(r"^(\S+): test$", listed, re.MULTILINE)
    models = [name for name in names if name.startswith(MODELS)]
    return [name for name in models if not parts or any(part in name for part in parts)]


def _check(
    kind: str, names: list[str], *, tree: Path, log: str, seconds: float, seed: int
) -> subprocess.CompletedProcess[str]:
    """Run models of one kind, each for so many seconds."""
    return _cargo(
        kind,
        ["--", "--exact", f"--test-threads={THREADS}", *names],
        tree=tree,
        log=log,
        environment={"KVRING_MODEL_SECONDS": str(seconds), "KVRING_MODEL_SEED": str(seed)},
        timeout_s=seconds * len(names) + MOST_SECONDS_MORE,
    )


def _findings(kind: str, seed: int, done: subprocess.CompletedProcess[str], log: str) -> list[str]:
    if done.returncode == 0:
        return []
    failed = _FAILED.findall(done.stdout.rpartition("\nfailures:\n")[2])
    if not failed:
        return [f"{kind} ended with {done.returncode}: see {OUTPUT / 'models' / log}"]
    findings = []
    for name in failed:
        section = done.stdout.partition(f"---- {name} stdout ----")[2].partition("\n---- ")[0]
        schedule = _SCHEDULE.search(section)
        setting = f"KVRING_MODEL_SCHEDULE={schedule[1]} " if schedule else ""
        again = f"{setting}python -m tools models --seed {seed} {name}"
        findings.append(f"{kind}: {name}: {again} (log: {OUTPUT / 'models' / log})")
    return findings


def _search(options: Options) -> Report:
    models = {}
    for kind in KINDS:
        if not _build(kind, REPOSITORY):
            errors = OUTPUT / "models" / f"{kind}-build.log"
            raise BuildError(f"the models for {kind} do not build: see {errors}")
        models[kind] = _models_of(kind, options.arguments)
    seconds = options.seconds * THREADS / max(1, sum(map(len, models.values())))
    report, told = Report(), []
    for kind, names in models.items():
        if not names:
            continue
        log = f"{kind}.log"
        done = _check(kind, names, tree=REPOSITORY, log=log, seconds=seconds, seed=options.seed)
        report.findings += _findings(kind, options.seed, done, log)
        orders = sum(int(count) for _, count in _COUNT.findall(done.stdout))
        told.append(f"{len(names)} models with {kind}, {orders:,} orders")
    report.ran = "; ".join(told)
    return report


def _find_planted(options: Options) -> Report:
    report, found = Report(), 0
    patches = patches_of("models")
    models = {kind: _models_of(kind, options.arguments) for kind in KINDS}
    for patch in patches:
        kind = patch.name.split("-")[1]
        log = f"{patch.stem}.log"
        with tree_with(patch) as tree:
            if not _build(kind, tree):
                report.findings.append(f"{patch.name}: it does not build")
                continue
            rare = _FOUND_BY.findall(patch.read_text())
            names, seconds = (rare, RARE_SECONDS) if rare else (models[kind], PLANTED_SECONDS)
            done = _check(kind, names, tree=tree, log=log, seconds=seconds, seed=options.seed)
        if _findings(kind, options.seed, done, log):
            found += 1
        else:
            report.findings.append(f"{patch.name}: not found by {kind}")
    report.ran = f"{found} of {len(patches)} planted bugs found"
    return report
