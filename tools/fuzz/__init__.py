"""Fuzzing: hostile files, text, archives and messages, and operations with faults against a model.

`-- TARGET...` names the targets. Corpora that grow, and what made a target fail, are in
target/tools/fuzz-corpus and fuzz-findings; fuzz/corpus has the seeds, which are replayed first.
The targets in Rust need nightly, and `open_device` root; those in Python need atheris.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.tool import OUTPUT, REPOSITORY, BuildError, Options, Report, call, cargo_tool

_CARGO_FUZZ = "0.13.2"
_ATHERIS = "3.0.0"
_TOOLS = OUTPUT / "programs"
_BUILT = OUTPUT / "fuzz"
_TOGETHER = 2
_LONGEST_BUILD_S = 1800.0
# An input takes milliseconds; on a machine that does much else, a hundred times as long.
_LIMITS = ("-timeout=60", "-rss_limit_mb=2048", "-len_control=0", "-print_final_stats=1")
_LEAST_S = 10.0


@dataclass(frozen=True)
class _Target:
    name: str
    longest_bytes: int
    is_python: bool = False


_TARGETS = (
    _Target("open_index", 512),
    _Target("open_device", 512),
    _Target("keys_and_options", 512),
    _Target("operations", 512),
    _Target("archive", 16 << 10, is_python=True),
    _Target("sockets", 1024, is_python=True),
)


def run(options: Options) -> Report:
    """Replay the seeds, then search for what makes a target fail."""
    chosen = [one for one in _TARGETS if not options.arguments or one.name in options.arguments]
    skipped = _prepare(chosen)
    targets = [one for one in chosen if one.name not in skipped]
    if not targets:
        return Report(skipped="; ".join(f"{name}: {why}" for name, why in skipped.items()))
    seconds = max(_LEAST_S, options.seconds * _TOGETHER / len(targets))
    report = _search(targets, options.seed, seconds)
    report.ran += "".join(f", {name} skipped: {why}" for name, why in skipped.items())
    return report


def _prepare(targets: list[_Target]) -> dict[str, str]:
    """Build what the targets need. Returns which of them cannot run, and why."""
    skipped: dict[str, str] = {}
    if any(one.is_python for one in targets):
        why = _install_atheris()
        skipped |= {one.name: why for one in targets if why and one.is_python}
    if any(not one.is_python for one in targets):
        why = _build()
        skipped |= {one.name: why for one in targets if why and not one.is_python}
    if "open_device" not in skipped and not _has_loop_devices():
        skipped["open_device"] = "no loop devices: it needs root"
    return skipped


def _install_atheris() -> str:
    home = _TOOLS / "python"
    if not (home / "atheris").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        # Shared reads need NumPy, which this environment may lack.
        done = call([*command, "--target", home, f"atheris=={_ATHERIS}", "numpy"])
        if done.returncode:
            return "atheris has no wheel for this Python"
    return ""


def _build() -> str:
    if call(["cargo", "+nightly", "--version"]).returncode:
        return "no nightly toolchain"
    cargo_fuzz = cargo_tool("cargo-fuzz", _CARGO_FUZZ)
    if cargo_fuzz is None:
        return "cargo-fuzz cannot be installed"
    # No sanitizer: they watch the suites, and here they would take half of the speed.
    command = ["cargo", "+nightly", "fuzz", "build", "--sanitizer=none"]
    done = call(
        [*command, "--fuzz-dir", REPOSITORY / "fuzz", "--target-dir", _BUILT],
        log=OUTPUT / "fuzz-build.log",
        directory=REPOSITORY / "fuzz",
        environment={"PATH": f"{cargo_fuzz.parent}:{os.environ['PATH']}"},
        timeout_s=_LONGEST_BUILD_S,
    )
    if done.returncode:
        raise BuildError(f"the targets do not build: {OUTPUT / 'fuzz-build.log'}")
    return ""


def _has_loop_devices() -> bool:
    return shutil.which("losetup") is not None and call(["losetup", "--find"]).returncode == 0


def _search(targets: list[_Target], seed: int, seconds: float) -> Report:
    report = Report()
    with ThreadPoolExecutor(_TOGETHER) as threads:
        runs = [threads.submit(_fuzz, one, seed, seconds) for one in targets]
        done = [one.result() for one in runs]
    counted = zip(targets, done, strict=True)
    report.ran = ", ".join(f"{one.name} {runs:,}" for one, (runs, _) in counted) + " executions"
    report.findings = [finding for _, findings in done for finding in findings]
    return report


def _command(target: _Target) -> list[str | Path]:
    if target.is_python:
        return [sys.executable, "-m", f"tools.fuzz.{target.name}"]
    return [_BUILT / "x86_64-unknown-linux-gnu" / "release" / target.name]


def _fuzz(target: _Target, seed: int, seconds: float) -> tuple[int, list[str]]:
    """Run a target until the time is over or it fails. Returns the executions, and what failed."""
    corpus = OUTPUT / "fuzz-corpus" / target.name
    failed = OUTPUT / "fuzz-findings" / target.name
    seeds = REPOSITORY / "fuzz" / "corpus" / target.name
    for directory in (corpus, failed, seeds):
        directory.mkdir(parents=True, exist_ok=True)
    log = OUTPUT / "fuzz-findings" / f"{target.name}.log"
    limits = (
        f"-max_total_time={seconds:.0f}",
        f"-max_len={target.longest_bytes}",
        f"-seed={seed}",
        f"-artifact_prefix={failed}/",
        *_LIMITS,
    )
    # In memory, where there is some: a store is made for each input.
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kvring-fuzz-", dir=home) as temporary:
        done = call(
            [*_command(target), corpus, seeds, *limits],
            log=log,
            environment={
                "TMPDIR": temporary,
                "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'connector_py'}:{_TOOLS / 'python'}",
            },
            timeout_s=seconds + 300,
        )
    counted = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    runs = int(counted[1]) if counted else 0
    if done.returncode == 0:
        return runs, []
    written = re.search(r"Test unit written to (\S+)", done.stdout)
    what = f"{target.name}: {_reason(done.stdout)} ({log})"
    if written:
        repeat = " ".join(str(part) for part in _command(target))
        what += f"; to repeat: {repeat} {written[1]}"
    return runs, [what]


def _reason(output: str) -> str:
    """Say in a line why a target failed."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if "panicked at" in line:
            return " ".join(lines[number : number + 2])
        if "Uncaught Python exception" in line:
            return " ".join(lines[number + 1 : number + 2])
        if line.startswith("SUMMARY: libFuzzer") or "ERROR: libFuzzer" in line:
            return line
    return lines[-1] if lines else "it ended without a word"
