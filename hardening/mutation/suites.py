"""The tests of the build: which mutants each reaches, and whether they notice one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hardening.mutation.build import HARNESSES, TREE
from hardening.tool import OUTPUT

UNIT = "kvring"
WORKERS = 2
_KNOWN = OUTPUT / "mutants-tests.json"
_LIMITS = ["nice", "prlimit", f"--as={16 << 30}", "--core=0"]


@dataclass(frozen=True)
class Test:
    """A test: the program that has it, its name there, and how long it takes."""

    program: str
    name: str
    seconds: float


@dataclass
class Tests:
    """All tests that pass without a mutant, and which mutants each of them reaches."""

    programs: dict[str, Path]
    reaching: dict[int, list[Test]] = field(default_factory=lambda: defaultdict(list))
    failing: list[str] = field(default_factory=list)

    @classmethod
    def found(cls, programs: dict[str, Path]) -> Tests:
        """Run each test of the programs by itself, with no mutant, unless that is known."""
        tests = cls(programs)
        stats = [(str(program), program.stat().st_mtime_ns) for program in programs.values()]
        key = repr(sorted(stats))
        if tests._read(key):
            return tests
        names = [(program, name) for program in programs for name in _names(programs[program])]
        with ThreadPoolExecutor(WORKERS) as threads:
            for program, name, seconds, reached in threads.map(lambda one: tests._try(*one), names):
                if reached is None:
                    tests.failing.append(f"{program} {name}")
                    continue
                for number in reached:
                    tests.reaching[number].append(Test(program, name, seconds))
        tests._write(key)
        return tests

    def _read(self, key: str) -> bool:
        known = json.loads(_KNOWN.read_text()) if _KNOWN.exists() else {}
        if known.get("programs") != key:
            return False
        for number, tests in known["reaching"].items():
            self.reaching[int(number)] = [Test(*test) for test in tests]
        self.failing = known["failing"]
        return True

    def _write(self, key: str) -> None:
        reaching = {
            number: [(test.program, test.name, test.seconds) for test in tests]
            for number, tests in self.reaching.items()
        }
        _KNOWN.write_text(
            json.dumps({"programs": key, "reaching": reaching, "failing": self.failing})
        )

    def _try(self, program: str, name: str) -> tuple[str, str, float, set[int] | None]:
        with tempfile.NamedTemporaryFile("r+") as reached:
            began = time.monotonic()
            environment = {"KVRING_REACHED": reached.name}
            outcome = _run(self.programs[program], [name], environment, timeout_s=120)
            seconds = time.monotonic() - began
            numbers = {int(line) for line in reached.read().split()}
        return program, name, seconds, numbers if outcome == "passed" else None

    def notice(self, number: int, most_s: float) -> str:
        """Run tests that reach a mutant, the quickest first, until one notices.

        Args:
            number: The mutant.
            most_s: How long those tests take without it that are asked, at most, beside unit tests.

        Returns:
            "caught", "timeout", "survived", or "unreached".
        """
        chosen: dict[str, list[Test]] = defaultdict(list)
        for test in sorted(self.reaching[number], key=lambda test: test.seconds):
            if test.program == UNIT:
                # The few that take long come by themselves.
                chosen[UNIT if test.seconds < 1 else f"{UNIT}, slow"].append(test)
            elif (most_s := most_s - test.seconds) >= 0:
                chosen[test.program].append(test)
        by_time = sorted(chosen.values(), key=lambda tests: sum(test.seconds for test in tests))
        for tests in sorted(by_time, key=lambda tests: tests[0].program != UNIT):
            outcome = _run(
                self.programs[tests[0].program],
                [test.name for test in tests],
                {"KVRING_MUTANT": str(number)},
                timeout_s=10 + 10 * sum(test.seconds for test in tests),
            )
            if outcome != "passed":
                return "timeout" if outcome == "timeout" else "caught"
        return "survived" if self.reaching[number] else "unreached"


def _names(program: Path) -> Iterable[str]:
    if program.name in HARNESSES:
        yield HARNESSES[program.name]
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
    if program.name in HARNESSES:
        command = [*_LIMITS, str(program), *names[0].split()]
    else:
        command = [*_LIMITS, str(program), "--test-threads=2", "--exact", *names]
    with tempfile.TemporaryDirectory(prefix="kvring-mutant-") as directory:
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
    if late.is_set():
        return "timeout"
    return "failed" if failed or code != 0 else "passed"


def _kill(process: subprocess.Popen[str]) -> None:
    """End a program and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
