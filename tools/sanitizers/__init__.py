"""The suites in Rust and Python under AddressSanitizer (with LeakSanitizer) and ThreadSanitizer.

ARGUMENTS are parts (address, thread, python-address, python-thread) and names of suites
(`lifecycle`, `test_close.py`); `kvring:engine::` stands for the unit tests with that in their name.
Without any, all run, in the order of `--seed`, as far as there is time. With ThreadSanitizer the
standard library is built anew, as it synchronises too.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tests.support.built_package import place_package
from tools.tool import OUTPUT, REPOSITORY, TIMED_OUT, BuildError, Options, Report, call, from_seed

_TRIPLE = f"{platform.machine()}-unknown-linux-gnu"
_BUILT = OUTPUT / "sanitizers"
_LOGS = _BUILT / "logs"
_REPORTS = _BUILT / "reports"

# No suite takes as long: it hangs.
_HANG_S = 600.0

# What is nearest to memory that the kernel has, and to threads, comes first; the rest by name.
_RUST_FIRST = (
    *("lifecycle", "late_loads", "completions", "outages", "faults", "reactors"),
    *("registered_memory", "order", "contract", "second_attempts", "failed_reactors", "kvring"),
)
# Minutes each, with a sanitizer.
_RUST_LAST = ("nth_fault", "power_loss", "damage")
# Not all at once: in a short search most would not have their turn.
_BUILT_TOGETHER = 6
# Hours with a sanitizer, of the same code for each bit.
_RUST_LEFT_OUT = {"damage": ("every_bit_of",)}
# A device that never answers has memory that is leaked, as is promised. These run by themselves,
# and leaks are not looked for.
_LEAKING = {
    "faults": ("a_stuck_device_leaks_rather_than_hangs",),
    "kvring": ("what_is_under_way_cannot_be_taken_out",),
}
# Those of memory, threads, descriptors and forks.
_PYTHON_SUITES = (
    *("test_close.py", "test_buffers.py", "test_buffer_exports.py"),
    *("test_registered_memory.py", "test_threads.py", "test_event_fd.py"),
    *("test_fork.py", "test_signals.py", "test_limits.py", "test_options.py"),
    *("ranks", "test_restart.py", "test_counters.py"),
    *("test_namespaces.py", "test_files.py", "test_engines.py", "test_refusals.py"),
    *("test_owner_socket.py", "test_transfers.py", "test_store_commands.py"),
)
# What cannot be with a runtime: it takes terabytes of address space, and in a fork takes what is
# mapped where a thread had its stack for that stack.
_PYTHON_LEFT_OUT = (
    "test_an_open_that_gets_no_address_space_says_how_much_and_why",
    "test_forks_of_an_owner_with_many_threads_open_stores_of_their_own",
)
# With that for threads bash ends.
_THREAD_LEFT_OUT = ("test_through_a_pipe_into_a_device",)


@dataclass(frozen=True)
class _Sanitizer:
    """One of the compiler's sanitizers, and how it is built and told to report."""

    name: str
    variable: str
    options: str
    cargo_options: tuple[str, ...] = ()
    # That of the C compiler takes what rustc emits: both are of the same version of the interface.
    runtime: str = "libasan.so"
    python_left_out: tuple[str, ...] = _PYTHON_LEFT_OUT

    def with_options(self, more: str) -> _Sanitizer:
        """Return the same with more options."""
        return replace(self, options=f"{self.options}:{more}")


_ADDRESS = _Sanitizer(
    "address", "ASAN_OPTIONS", "exitcode=99:detect_leaks=1:detect_stack_use_after_return=1"
)
_THREAD = _Sanitizer(
    "thread",
    "TSAN_OPTIONS",
    f"exitcode=99:suppressions={REPOSITORY / 'tools' / 'sanitizers' / 'thread.supp'}",
    ("-Zbuild-std",),
    "libtsan.so",
    _PYTHON_LEFT_OUT + _THREAD_LEFT_OUT,
)
# SIGBUS is kvring's own, for pages of the index that cannot be read. The interpreter keeps memory
# until its end, so that leaks of ours cannot be told from it.
_PARTS = {
    "address": _ADDRESS,
    "thread": _THREAD,
    "python-address": _ADDRESS.with_options("detect_leaks=0:handle_sigbus=0"),
    "python-thread": _THREAD.with_options("handle_sigbus=0:die_after_fork=0"),
}
# Of the time; what a part leaves goes to the next one.
_SHARES = {"address": 2, "thread": 2, "python-address": 1, "python-thread": 1}


def run(options: Options) -> Report:
    """Run as many suites as there is time for: the same ones, in their order, for the same seed."""
    if call(["cargo", "--version"]).returncode != 0:
        return Report(skipped="there is no cargo")
    parts = [name for name in options.arguments if name in _PARTS] or list(_PARTS)
    wanted = [name for name in options.arguments if name not in _PARTS]
    ran, broken, report, left_s = [], [], Report(), 0.0
    shares = sum(_SHARES[name] for name in parts)
    for name in parts:
        share_s = left_s + options.seconds * _SHARES[name] / shares
        search = _Search(_PARTS[name], name, share_s, options.seed)
        try:
            search.run_python(wanted) if name.startswith("python") else search.run_rust(wanted)
        except BuildError as error:
            broken.append(f"{name}: {error}")
        left_s = search.left_s
        ran.append(f"{name}: {search.suites} suites, {search.tests} tests")
        if search.late:
            ran[-1] += f", not all of {len(search.late)} more"
            print(f"{name}: not run, or not to the end: {', '.join(search.late)}")
        report.findings += search.findings
    report.ran, report.broken = "; ".join(ran), "; ".join(broken)
    return report


@dataclass
class _Search:
    """One part, until its time is over; what is built takes none of it."""

    sanitizer: _Sanitizer
    part: str
    left_s: float
    seed: int
    findings: list[str] = field(default_factory=list)
    tests: int = 0
    suites: int = 0
    late: list[str] = field(default_factory=list)

    def run_rust(self, wanted: Sequence[str]) -> None:
        """Run the Rust suites. A few are built at a time, when their turn comes."""
        filters = dict(name.partition(":")[::2] for name in wanted)

        def place(name: str) -> tuple[int, str]:
            if name in _RUST_FIRST:
                return _RUST_FIRST.index(name), name
            return len(_RUST_FIRST) + (name in _RUST_LAST), name

        programs = _programs()
        names = list(filters) or from_seed(sorted(programs, key=place), self.seed)
        while names and self.left_s >= 1:
            built = self._build(sorted({programs[name][0] for name in names[:_BUILT_TOGETHER]}))
            for name in names[:_BUILT_TOGETHER]:
                program, module = built[programs[name][0]], programs[name][1]
                chosen = [module + filters.get(name, "")]
                leaking = _LEAKING.get(name, ())
                left_out = (*leaking, *_RUST_LEFT_OUT.get(name, ()))
                skipped = [option for test in left_out for option in ("--skip", test)]
                self._run_program(name, [program, *chosen, *skipped], self.sanitizer)
                if leaking and not filters.get(name):
                    without = self.sanitizer
                    if without.name == "address":
                        without = without.with_options("detect_leaks=0")
                    self._run_program(f"{name} by itself", [program, *leaking], without)
            names = names[_BUILT_TOGETHER:]
        self.late += names

    def _build(self, programs: list[str]) -> dict[str, Path]:
        """Build programs with Rust suites, and return where they are."""
        targets = [["--lib"] if name == "kvring" else ["--test", name] for name in programs]
        what = [option for target in targets for option in target]
        return {
            str(made["target"]["name"]): Path(str(made["executable"]))  # type: ignore[index]
            for made in self._artifacts("test", "--no-run", *what)
            if made.get("executable")
        }

    def _run_program(self, name: str, command: Sequence[str | Path], sanitizer: _Sanitizer) -> None:
        self._run(name, command, sanitizer, {}, r"^test (.*) \.\.\. FAILED$")

    def run_python(self, wanted: Sequence[str]) -> None:
        """Run Python suites on a native module with a sanitizer, its runtime loaded first."""
        runtime = Path(call(["cc", f"-print-file-name={self.sanitizer.runtime}"]).stdout.strip())
        if not runtime.is_file():
            self.late.append("all of it: the C compiler has no runtime for it")
            return
        loaded = [str(runtime.resolve())]
        if self.sanitizer.name == "thread":
            loaded.append(str(_thread_memory()))
        built = self._artifacts("build", "--package", "kvring-python")
        library = [made for made in built if made["target"]["name"] == "_native"]  # type: ignore[index]
        package = _BUILT / self.part
        place_package(REPOSITORY, Path(str(library[-1]["filenames"][0])), package)  # type: ignore[index]
        # Children of tests inherit it.
        environment = {
            "LD_PRELOAD": " ".join(loaded),
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(package),
        }
        left_out = " or ".join(self.sanitizer.python_left_out)
        options = ["-q", "-p", "no:cacheprovider", "-k", f"not ({left_out})"]
        for name in wanted or from_seed(_PYTHON_SUITES, self.seed):
            command = [sys.executable, "-m", "pytest", *options, f"tests/python/{name}"]
            self._run(name, command, self.sanitizer, environment, r"^(?:FAILED|ERROR) (\S+)")

    def _artifacts(self, *what: str) -> list[dict[str, object]]:
        """Build something, and return what cargo says of each thing that it made."""
        cargo, environment = _cargo()
        command = [*cargo, *what, "--target", _TRIPLE, "--message-format", "json"]
        log = _LOGS / f"{self.part}-build.log"
        done = call(
            [*command, *self.sanitizer.cargo_options],
            log=log,
            environment={
                "CARGO_TARGET_DIR": str(_BUILT / self.sanitizer.name),
                "RUSTFLAGS": f"-Zsanitizer={self.sanitizer.name}",
                # Reports name lines; more takes longer to link.
                "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
                **environment,
            },
        )
        if done.returncode != 0:
            errors = re.findall(r"^error.*$", done.stdout, re.M)
            raise BuildError(f"it cannot be built, see {log}: {errors[:1]}")
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return [message for message in messages if message["reason"] == "compiler-artifact"]

    def _run(
        self,
        name: str,
        command: Sequence[str | Path],
        sanitizer: _Sanitizer,
        environment: Mapping[str, str],
        failed: str,
    ) -> None:
        """Run a suite, if there is time, and take note of the reports of all its processes."""
        limit_s = min(self.left_s, _HANG_S)
        if limit_s < 1:
            self.late.append(name)
            return
        log = _LOGS / f"{self.part}-{name.replace(' ', '-')}.log"
        reports = _REPORTS / self.part / name.replace(" ", "-")
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir(parents=True)
        told = {sanitizer.variable: f"log_path={reports / 'report'}:{sanitizer.options}"}
        began_s = time.monotonic()
        done = call(command, log=log, environment={**environment, **told}, timeout_s=limit_s)
        self.left_s -= time.monotonic() - began_s
        shown = [
            f"{summary} ({path})"
            for path in sorted(reports.glob("report.*"))
            for summary in re.findall(r"^SUMMARY: (.*)$", path.read_text(errors="replace"), re.M)
        ]
        shown += [f"{test} failed, see {log}" for test in re.findall(failed, done.stdout, re.M)]
        self.tests += sum(map(int, re.findall(r"(\d+) passed", done.stdout)))
        if done.returncode == TIMED_OUT and limit_s < _HANG_S:
            self.late.append(name)
        elif done.returncode == TIMED_OUT:
            shown.append(f"hangs, see {log}")
        elif done.returncode != 0 and not shown:
            # It crashed, or there is no such suite.
            shown.append(f"ended with {done.returncode}, see {log}")
        self.findings += [f"{self.part} {name}: {one}" for one in shown]
        self.suites += name not in self.late


def _programs() -> dict[str, tuple[str, str]]:
    """Return the program of each Rust suite, and how the names of its tests begin there."""
    programs = {"kvring": ("kvring", "")}
    tests = REPOSITORY / "tests"
    for file in (*tests.glob("*.rs"), *(tests / "rust").glob("*/*.rs")):
        is_module = (file.parent / "main.rs").exists()
        own = (file.parent.name, f"{file.stem}::") if is_module else (file.stem, "")
        if file.name != "main.rs":
            programs[file.stem] = own
    return programs


@cache
def _cargo() -> tuple[list[str], dict[str, str]]:
    """Return the command of a cargo that takes unstable flags, and what it needs beside it."""
    if call(["cargo", "+nightly", "--version"]).returncode == 0:
        return ["cargo", "+nightly"], {}
    return ["cargo"], {"RUSTC_BOOTSTRAP": "1"}


def _thread_memory() -> Path:
    """Build what the runtime for threads lacks: functions that rustc calls to copy memory."""
    _BUILT.mkdir(parents=True, exist_ok=True)
    library = _BUILT / "thread_memory.so"
    source = REPOSITORY / "tools" / "sanitizers" / "thread_memory.c"
    call(["cc", "-shared", "-fPIC", "-fno-builtin", source, "-o", library]).check_returncode()
    return library
