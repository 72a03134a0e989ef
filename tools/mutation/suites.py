"""The tests of the build: which mutants each reaches, and whether they notice one."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tools.mutation.build import HARNESSES, PYTHON_PACKAGE, TREE, native_module
from tools.tool import OUTPUT

WORKERS = 2
_KNOWN = OUTPUT / "mutants-tests.json"
# A test that takes longer is of no use here; a suite in Python is one.
_TRY_S = {False: 60, True: 240}
# Stores in Python reserve more address space than those of a Rust suite.
_LIMITS = {
    is_python: ["nice", "prlimit", f"--as={gibibytes << 30}", "--core=0"]
    for is_python, gibibytes in ((False, 16), (True, 64))
}


@dataclass(frozen=True)
class Test:
    """A test: the program that has it, its name there, and how long it takes."""

    program: str
    name: str
    seconds: float


class Tests:
    """Tests that pass without a mutant, and which mutants each of them reaches."""

    def __init__(self) -> None:
        self._programs: dict[str, Path] = {}
        self._known: dict[str, list[Any]] = (
            json.loads(_KNOWN.read_text()) if _KNOWN.exists() else {}
        )
        self.reaching: dict[int, list[Test]] = defaultdict(list)
        self.failing: list[str] = []
        self._lock = threading.Lock()

    def look_at(self, programs: dict[str, Path], deadline: float) -> None:
        """Run each test of these programs by itself, with no mutant, unless that is known.

        Args:
            programs: Those that it has not looked at yet are added.
            deadline: By the monotonic clock: no program is begun later, or added.
        """
        new = {name: path for name, path in programs.items() if name not in self._programs}
        # Suites in Python are one test each: they run beside each other, and what fails by itself.
        at_once = WORKERS if all(map(_is_python, new.values())) else 1
        if at_once > 1:
            with ThreadPoolExecutor(at_once) as threads:
                list(threads.map(partial(self._look, deadline), new, new.values()))
            at_once = 1
        with ThreadPoolExecutor(at_once) as threads:
            for name, found in zip(
                new, threads.map(partial(self._look, deadline), new, new.values()), strict=True
            ):
                if found is None:
                    continue
                self._programs[name] = new[name]
                for test, seconds, reached in found:
                    if reached is None:
                        self.failing.append(f"{name} {test}")
                    for number in reached or ():
                        self.reaching[number].append(Test(name, test, seconds))

    def _look(self, deadline: float, name: str, program: Path) -> list[Any] | None:
        content = hashlib.blake2b(program.read_bytes(), digest_size=16)
        if _is_python(program):
            content.update(native_module().read_bytes())
        key = f"{name}, {content.hexdigest()}"
        if key not in self._known:
            if time.monotonic() > deadline:
                return None
            with ThreadPoolExecutor(WORKERS) as threads:
                found = list(threads.map(partial(_try, program), _names(program)))
            if any(reached is None for _, _, reached in found):
                # It may pass the next time.
                return found
            with self._lock:
                self._known[key] = found
                _KNOWN.write_text(json.dumps(self._known))
        return self._known[key]

    def notice(self, number: int, programs: Collection[str], most_s: float) -> str:
        """Run tests that reach a mutant, the quickest first, until one notices.

        Args:
            number: The mutant.
            programs: Whose tests are asked.
            most_s: How long these tests take without it, at most.

        Returns:
            "caught", "timeout", "survived", or "unreached".
        """
        chosen: dict[str, list[Test]] = defaultdict(list)
        for test in sorted(self.reaching[number], key=lambda test: test.seconds):
            if test.program in programs and (most_s := most_s - test.seconds) >= 0:
                # The few that take long come by themselves.
                chosen[test.program if test.seconds < 1 else f"{test.program}, slow"].append(test)
        for tests in sorted(chosen.values(), key=lambda tests: sum(one.seconds for one in tests)):
            outcome = _run(
                self._programs[tests[0].program],
                [test.name for test in tests],
                {"KVRING_MUTANT": str(number)},
                timeout_s=10 + 4 * sum(test.seconds for test in tests),
            )
            if outcome != "passed":
                return "timeout" if outcome == "timeout" else "caught"
        return "survived" if self.reaching[number] else "unreached"


def _try(program: Path, name: str) -> tuple[str, float, list[int] | None]:
    """Return how long a test takes, and which mutants it reaches if it passes.

    One that takes too long is asked about none.
    """
    with tempfile.NamedTemporaryFile("r+") as reached:
        began = time.monotonic()
        outcome = _run(
            program, [name], {"KVRING_REACHED": reached.name}, timeout_s=_TRY_S[_is_python(program)]
        )
        seconds = time.monotonic() - began
        numbers = sorted({int(line) for line in reached.read().split()})
    if outcome == "timeout":
        numbers = []
    return name, seconds, None if outcome == "failed" else numbers


def _names(program: Path) -> Iterable[str]:
    if program.name in HARNESSES or _is_python(program):
        yield HARNESSES.get(program.name, program.name)
        return
    listed = subprocess.run(
        [program, "--list", "--format=terse"], cwd=TREE, check=True, capture_output=True, text=True
    )
    for line in listed.stdout.splitlines():
        name, _, kind = line.rpartition(": ")
        if kind == "test":
            yield name


def _run(program: Path, names: list[str], environment: dict[str, str], *, timeout_s: float) -> str:
    """Run tests until one fails. Returns "passed", "failed" or "timeout"."""
    if _is_python(program):
        # Its children find the module with the mutants too.
        environment = {**environment, "PYTHONPATH": str(PYTHON_PACKAGE)}
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command = [*_LIMITS[True], *pytest, str(program)]
    elif program.name in HARNESSES:
        command = [*_LIMITS[False], str(program), *names[0].split()]
    else:
        command = [*_LIMITS[False], str(program), "--test-threads=2", "--exact", *names]
    with tempfile.TemporaryDirectory(
        prefix="kvring-mutant-", ignore_cleanup_errors=True
    ) as directory:
        process = subprocess.Popen(
            command,
            cwd=TREE,
            env={**os.environ, **environment, "TMPDIR": directory, "RUST_BACKTRACE": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        late, failed = threading.Event(), False

        def end() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(timeout_s, end)
        timer.start()
        try:
            failed = process.stdout is None or any(
                line.rstrip().endswith("... FAILED") for line in process.stdout
            )
        finally:
            timer.cancel()
            if failed:
                _kill(process)
            code = process.wait()
            _kill(process)
            _unmount(directory)
            _detach_loop_devices(directory)
    if late.is_set():
        return "timeout"
    return "failed" if failed or code != 0 else "passed"


def _is_python(program: Path) -> bool:
    return program.suffix == ".py"


def _unmount(directory: str) -> None:
    """A test that is killed leaves what it has mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mounted_at = line.split()[1]
        if mounted_at.startswith(f"{directory}/"):
            subprocess.run(["umount", "--lazy", mounted_at], check=False)


def _detach_loop_devices(directory: str) -> None:
    """A test that is killed leaves the loop devices of its files."""
    listed = subprocess.run(["losetup", "-a"], check=False, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        if f"({directory}/" in line:
            subprocess.run(["losetup", "-d", line.partition(":")[0]], check=False)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a program and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
