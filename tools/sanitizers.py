"""AddressSanitizer with LeakSanitizer, and ThreadSanitizer, over the Rust and Python suites.

Arguments choose among `address`, `thread` (the Rust suites), `python-address` and `python-thread`
(the Python ones, with the native module built so); none stands for all, in this order. A name of a
suite (`lifecycle`, `test_close.py`) runs that one alone, and `kvring:engine::` those of its tests
that have this in their name. With ThreadSanitizer the standard library is built anew, as it
synchronises too.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tests.support.built_package import place_package
from tools.tool import OUTPUT, REPOSITORY, BuildError, Options, Report, call, from_seed

TRIPLE = f"{platform.machine()}-unknown-linux-gnu"
BUILT = OUTPUT / "sanitizers"
LOGS = BUILT / "logs"
REPORTS = BUILT / "reports"

# No suite takes as long: it hangs.
HANG_S = 600.0

# What is nearest to memory that the kernel has, and to threads, comes first; the rest by name.
RUST_FIRST = (
    *("lifecycle", "late_loads", "completions", "outages", "faults", "reactors"),
    *("registered_memory", "order", "contract", "second_attempts", "failed_reactors", "kvring"),
)
# Not all at once: in a short search most would not have their turn.
BUILT_TOGETHER = 6
# Minutes each, with a sanitizer.
RUST_LAST = ("nth_fault", "power_loss", "damage")
# Hours with a sanitizer, of the same code for each bit.
RUST_LEFT_OUT = {"damage": ("every_bit_of",)}
# A device that never answers has memory that is leaked, as is promised. These run by themselves,
# and leaks are not looked for.
LEAKING = {
    "lifecycle": ("close_says_whether_the_kernel_still_has_memory",),
    "faults": ("a_stuck_device_leaks_rather_than_hangs",),
    "kvring": ("what_is_under_way_cannot_be_taken_out",),
}
PYTHON_SUITES = (
    *("test_close.py", "test_buffers.py", "test_buffer_exports.py", "test_tensors.py"),
    *("test_registered_memory.py", "test_answers.py", "test_threads.py", "test_event_fd.py"),
    *("test_fork.py", "test_signals.py", "test_limits.py", "test_keys.py", "test_options.py"),
    *("shared_reads", "test_pins.py", "test_ttl.py", "test_restart.py", "test_stats.py"),
    *("test_namespaces.py", "test_files.py", "test_engines.py", "test_refusals.py"),
    *("test_owner_socket.py", "test_transfers.py", "test_store_commands.py"),
)
# What cannot be with a runtime: it takes terabytes of address space, sums so slowly that a small
# store takes minutes or is all being written at a time, and in a fork takes what is mapped where a
# thread had its stack for that stack.
PYTHON_LEFT_OUT = (
    "test_an_open_that_gets_no_address_space_says_how_much_and_why",
    "test_all_that_it_takes_stays_within_the_capacity",
    "test_forks_of_an_owner_with_many_threads_open_stores_of_their_own",
)
# That for threads knows no new threads in a fork of a process with several, and bash ends with it.
THREAD_LEFT_OUT = (
    "test_a_fork_may_open_a_store_of_its_own",
    "test_through_a_pipe_into_a_device",
)


@dataclass(frozen=True)
class _Sanitizer:
    """One of the compiler's sanitizers, and how it is built and told to report."""

    name: str
    variable: str
    options: str
    cargo_options: tuple[str, ...] = ()

    @property
    def build_environment(self) -> dict[str, str]:
        """What cargo builds with."""
        return {
            "CARGO_TARGET_DIR": str(BUILT / self.name),
            "RUSTFLAGS": f"-Zsanitizer={self.name}",
            # Reports name lines; more takes longer to link.
            "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
            **_cargo()[1],
        }

    def without_leaks(self) -> _Sanitizer:
        """Return the same, but for leaks."""
        return replace(self, options=f"{self.options}:detect_leaks=0")

    def run_environment(self, reports: Path) -> dict[str, str]:
        """Return what programs run with, so that each process writes its reports to a file."""
        return {self.variable: f"log_path={reports}:{self.options}"}


ADDRESS = _Sanitizer(
    "address", "ASAN_OPTIONS", "detect_leaks=1:detect_stack_use_after_return=1:exitcode=99"
)
THREAD = _Sanitizer(
    "thread",
    "TSAN_OPTIONS",
    f"exitcode=99:suppressions={REPOSITORY / 'tools' / 'thread.supp'}",
    ("-Zbuild-std",),
)
# The interpreter keeps memory until its end, so that leaks of ours cannot be told from it. SIGBUS
# is kvring's own, for pages of the index that cannot be read.
PYTHON_ADDRESS = replace(ADDRESS, options="detect_leaks=0:handle_sigbus=0:exitcode=99")
PYTHON_THREAD = replace(THREAD, options=f"{THREAD.options}:handle_sigbus=0:die_after_fork=0")


@dataclass
class _Search:
    """A search until its time is over; what is built takes none of it."""

    left_s: float
    seed: int
    findings: list[str] = field(default_factory=list)
    tests: int = 0
    suites: int = 0
    late: list[str] = field(default_factory=list)

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        reports: Path,
        failed: str,
    ) -> None:
        """Run a suite, if there is time, and take note of what it has shown.

        Args:
            name: What it is called in findings.
            command: What runs it.
            environment: Has the sanitizer write to files `report.*`.
            reports: The directory of these files.
            failed: Matches the tests that failed in what it prints.
        """
        limit_s = min(self.left_s, HANG_S)
        if limit_s < 1:
            self.late.append(name)
            return
        log = LOGS / f"{name.replace(' ', '-')}.log"
        begin_s = time.monotonic()
        done = call(command, log=log, environment=environment, timeout_s=limit_s)
        self.left_s -= time.monotonic() - begin_s
        shown = [f"{name}: {line}" for line in _reports(reports)]
        shown += [f"{name}: {test} failed" for test in re.findall(failed, done.stdout, re.M)]
        self.tests += sum(map(int, re.findall(r"(\d+) passed", done.stdout)))
        if done.returncode == 124 and limit_s < HANG_S:
            self.late.append(name)
        elif done.returncode == 124:
            shown.append(f"{name}: hangs, see {log}")
        elif done.returncode != 0 and not shown:
            # It crashed, or there is no such suite.
            shown.append(f"{name}: ended with {done.returncode}, see {log}")
        self.findings += shown
        self.suites += name not in self.late


@cache
def _cargo() -> tuple[list[str], dict[str, str]]:
    """Return the command of a cargo that takes unstable flags, and what it needs beside it."""
    if call(["cargo", "+nightly", "--version"]).returncode == 0:
        return ["cargo", "+nightly"], {}
    return ["cargo"], {"RUSTC_BOOTSTRAP": "1"}


def _artifacts(sanitizer: _Sanitizer, *what: str) -> list[dict[str, object]]:
    """Build something, and return what cargo says of each thing that it made."""
    command = [*_cargo()[0], *what, "--target", TRIPLE, "--message-format", "json"]
    log = LOGS / f"{sanitizer.name}-build.log"
    done = call(
        [*command, *sanitizer.cargo_options],
        log=log,
        environment=sanitizer.build_environment,
    )
    if done.returncode != 0:
        errors = re.findall(r"^error.*$", done.stdout, re.M)
        raise BuildError(f"it cannot be built, see {log}: {errors[:1]}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [message for message in messages if message["reason"] == "compiler-artifact"]


def _reports(directory: Path) -> Iterator[str]:
    """Yield one line for each kind of report in the files of all processes."""
    for path in sorted(directory.glob("report.*")):
        for summary in re.findall(r"^SUMMARY: (.*)$", path.read_text(errors="replace"), re.M):
            yield f"{summary} ({path})"


def _rust(search: _Search, sanitizer: _Sanitizer, wanted: tuple[str, ...]) -> None:
    """Run the Rust suites under a sanitizer. A few are built at a time, when their turn comes."""
    filters = dict(name.partition(":")[::2] for name in wanted)

    def place(name: str) -> tuple[int, str]:
        if name in RUST_FIRST:
            return RUST_FIRST.index(name), name
        return len(RUST_FIRST) + (name in RUST_LAST), name

    suites = ["kvring", *(file.stem for file in (REPOSITORY / "tests").glob("*.rs"))]
    names = list(filters) or from_seed(sorted(suites, key=place), search.seed)
    while names and search.left_s >= 1:
        programs = _programs(sanitizer, names[:BUILT_TOGETHER])
        for name, program in programs.items():
            chosen = [filters[name]] if filters.get(name) else []
            leaking = LEAKING.get(name, ())
            left_out = (*leaking, *RUST_LEFT_OUT.get(name, ()))
            skipped = [option for test in left_out for option in ("--skip", test)]
            _run_program(search, sanitizer, program, [*chosen, *skipped])
            if leaking and not chosen:
                by_itself = sanitizer.without_leaks()
                _run_program(search, by_itself, program, [*leaking], " by itself")
        names = names[BUILT_TOGETHER:]
    search.late += [f"{sanitizer.name} {name}" for name in names]


def _programs(sanitizer: _Sanitizer, names: list[str]) -> dict[str, Path]:
    """Build suites, and return their programs in the order of the names."""
    which = [option for name in names for option in _cargo_options_of(name)]
    built = {
        str(made["target"]["name"]): Path(str(made["executable"]))  # type: ignore[index]
        for made in _artifacts(sanitizer, "test", "--no-run", *which)
        if made.get("executable")
    }
    return {name: built[name] for name in names}


def _run_program(
    search: _Search,
    sanitizer: _Sanitizer,
    program: Path,
    arguments: list[str],
    how: str = "",
) -> None:
    suite = f"{sanitizer.name} {program.name.rpartition('-')[0]}{how}"
    reports = _fresh(REPORTS / suite.replace(" ", "-"))
    environment = sanitizer.run_environment(reports / "report")
    command: Sequence[str | Path] = (program, *arguments)
    search.run(suite, command, environment, reports, r"^test (.*) \.\.\. FAILED$")


def _cargo_options_of(suite: str) -> list[str]:
    return ["--lib"] if suite == "kvring" else ["--test", suite]


def _fresh(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _preloaded(sanitizer: _Sanitizer) -> list[str]:
    """Return what a process without the runtime loads first; nothing if the compiler has none."""
    # That of the C compiler takes what rustc emits: both are of the same version of the interface.
    name = "libasan.so" if sanitizer.name == "address" else "libtsan.so"
    runtime = Path(call(["cc", f"-print-file-name={name}"]).stdout.strip())
    if not runtime.is_file():
        return []
    loaded = [str(runtime.resolve())]
    if sanitizer.name == "thread":
        BUILT.mkdir(parents=True, exist_ok=True)
        added = BUILT / "thread_memory.so"
        source = REPOSITORY / "tools" / "thread_memory.c"
        call(["cc", "-shared", "-fPIC", "-fno-builtin", source, "-o", added]).check_returncode()
        loaded.append(str(added))
    return loaded


def _python(search: _Search, sanitizer: _Sanitizer, wanted: tuple[str, ...]) -> None:
    """Run Python suites on a native module with a sanitizer, its runtime loaded first."""
    part = f"python-{sanitizer.name}"
    preloaded = _preloaded(sanitizer)
    if not preloaded:
        search.late.append(f"{part} (the C compiler has no runtime for it)")
        return
    built = _artifacts(sanitizer, "build", "--package", "kvring-python")
    library = [made for made in built if made["target"]["name"] == "_native"]  # type: ignore[index]
    package = BUILT / part
    place_package(REPOSITORY, Path(str(library[-1]["filenames"][0])), package)  # type: ignore[index]
    for name in wanted or from_seed(PYTHON_SUITES, search.seed):
        logs = _fresh(REPORTS / part / name)
        # Children of tests inherit it.
        environment = {
            **sanitizer.run_environment(logs / "report"),
            "LD_PRELOAD": " ".join(preloaded),
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(package),
        }
        also = THREAD_LEFT_OUT if sanitizer.name == "thread" else ()
        left_out = " or ".join((*PYTHON_LEFT_OUT, *also))
        options = ["-q", "-p", "no:cacheprovider", "-k", f"not ({left_out})"]
        command = [sys.executable, "-m", "pytest", *options, f"tests/python/{name}"]
        search.run(f"{part} {name}", command, environment, logs, r"^(?:FAILED|ERROR) (\S+)")


PARTS: dict[str, Callable[[_Search, tuple[str, ...]], None]] = {
    "address": lambda search, wanted: _rust(search, ADDRESS, wanted),
    "thread": lambda search, wanted: _rust(search, THREAD, wanted),
    "python-address": lambda search, wanted: _python(search, PYTHON_ADDRESS, wanted),
    "python-thread": lambda search, wanted: _python(search, PYTHON_THREAD, wanted),
}
# Of the time; what a part leaves goes to the next one.
SHARES = {"address": 2, "thread": 2, "python-address": 1, "python-thread": 1}


def run(options: Options) -> Report:
    """Run as many suites as there is time for: the same ones, in their order, for the same seed."""
    if call(["cargo", "--version"]).returncode != 0:
        return Report(skipped="there is no cargo")
    parts = [name for name in options.arguments if name in PARTS] or list(PARTS)
    wanted = tuple(name for name in options.arguments if name not in PARTS)
    ran, findings, broken, left_s = [], [], [], 0.0
    shares = sum(SHARES[name] for name in parts)
    for name in parts:
        search = _Search(left_s + options.seconds * SHARES[name] / shares, options.seed)
        try:
            PARTS[name](search, wanted)
        except BuildError as error:
            broken.append(f"{name}: {error}")
        left_s = search.left_s
        late = f", not all of {len(search.late)} more" if search.late else ""
        if late:
            print(f"{name}: not run, or not to the end: {', '.join(search.late)}")
        ran.append(f"{name}: {search.suites} suites, {search.tests} tests{late}")
        findings += search.findings
    return Report(ran="; ".join(ran), findings=findings, broken="; ".join(broken))
