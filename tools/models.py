"""Races between kvring's threads, searched for by loom and shuttle in models of its code.

ARGUMENTS are `loom` or `shuttle`, and parts of the names of models; without any, all run. A
schedule of shuttle that failed is run again with

    KVRING_MODEL_SCHEDULE=FILE python -m tools models NAME

src/models says how models are written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from subprocess import CompletedProcess

from tools.tool import OUTPUT, BuildError, Options, Report, call

KINDS = ("loom", "shuttle")

# Tests of a build for models that are models.
_MODELS = (
    "models::",
    "connector::tests::",
    "index::file::changes::tests::models::",
    "index::memory::map::tests::readers::",
    "reactor::health::tests::models_",
)
# Models that run at the same time.
_THREADS = 2
# A model that does not come back is a finding too.
_LATE_S = 300
_LOGS = OUTPUT / "models"
# What seldom changes is optimized; the rest is built anew for each change.
_KVRING = "profile.dev.package.kvring.opt-level=0"
_CARGO_TEST = ("cargo", "--config", _KVRING, "test", "--locked", "--lib")

_COUNT = re.compile(r"^(?:test \S+ \.\.\. )?model (\S+): (\d+) orders", re.MULTILINE)
_FAILED = re.compile(r"^    (\S+)$", re.MULTILINE)
_SCHEDULE = re.compile(r"persisted to file: (\S+)")


def run(options: Options) -> Report:
    """Run each model for its share of the time, or until all orders were tried."""
    kinds = [kind for kind in KINDS if kind in options.arguments] or KINDS
    parts = [part for part in options.arguments if part not in KINDS]
    models = {}
    for kind in kinds:
        if _cargo(kind, ["--no-run"], "build").returncode != 0:
            raise BuildError(f"the models do not build: see {_LOGS / f'{kind}-build.log'}")
        listed = _cargo(kind, ["--", "--list"], "list").stdout
        names = re.findall(r"^(\S+): test$", listed, re.MULTILINE)
        names = [name for name in names if name.startswith(_MODELS)]
        models[kind] = [name for name in names if not parts or any(one in name for one in parts)]
    seconds = options.seconds * _THREADS / max(1, sum(map(len, models.values())))
    report, ran = Report(), []
    found = [name for names in models.values() for name in names]
    if options.arguments == ():
        # What was moved would be missed by nobody.
        lost = [one for one in _MODELS if not any(name.startswith(one) for name in found)]
        report.findings += [f"no model is called {prefix}..." for prefix in lost]
    for kind, names in models.items():
        if not names:
            continue
        done = _cargo(
            kind,
            ["--", "--exact", f"--test-threads={_THREADS}", *names],
            "run",
            {"KVRING_MODEL_SECONDS": str(seconds), "KVRING_MODEL_SEED": str(options.seed)},
            timeout_s=seconds * len(names) + _LATE_S,
        )
        report.findings += _findings(kind, options.seed, done)
        orders = sum(int(count) for _, count in _COUNT.findall(done.stdout))
        ran.append(f"{len(names)} models with {kind}, {orders:,} orders")
    report.ran = "; ".join(ran)
    return report


def _cargo(
    kind: str,
    arguments: list[str],
    log: str,
    environment: dict[str, str] | None = None,
    timeout_s: float | None = None,
) -> CompletedProcess[str]:
    schedules = _LOGS / "schedules"
    schedules.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")
    return call(
        [*_CARGO_TEST, *arguments],
        log=_LOGS / f"{kind}-{log}.log",
        environment={
            "RUSTFLAGS": f'--cfg kvring_model="{kind}"',
            "CARGO_TARGET_DIR": str(_LOGS / kind),
            "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
            "CARGO_PROFILE_DEV_DEBUG": "0",
            "KVRING_MODEL_FAILURES": str(schedules),
            **({"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {}),
            **(environment or {}),
        },
        timeout_s=timeout_s,
    )


def _findings(kind: str, seed: int, done: CompletedProcess[str]) -> list[str]:
    if done.returncode == 0:
        return []
    log = _LOGS / f"{kind}-run.log"
    findings = []
    for name in _FAILED.findall(done.stdout.rpartition("\nfailures:\n")[2]):
        section = done.stdout.partition(f"---- {name} stdout ----")[2].partition("\n---- ")[0]
        schedule = _SCHEDULE.search(section)
        setting = f"KVRING_MODEL_SCHEDULE={schedule[1]} " if schedule else ""
        again = f"{setting}python -m tools models --seed {seed} {kind} {name}"
        findings.append(f"{kind}: {name}: {again} (log: {log})")
    return findings or [f"{kind} ended with {done.returncode}: see {log}"]
