"""Miri, which sees every access to memory, over the unit tests of what makes no system calls.

ARGUMENTS are filters of test names, as of `cargo test`; none stands for the list below.
"""

from __future__ import annotations

import re
import time
from subprocess import CompletedProcess

from tools.tool import OUTPUT, TIMED_OUT, BuildError, Options, Report, call, from_seed

_BUILT = OUTPUT / "miri"

# Modules. What has unsafe code comes first, then what is quick; a seed begins elsewhere.
_FILTERS = (
    *("engine::requests", "reactor::piece", "batch::responder", "segmented_vec"),
    *("reactor::io_error_policy", "sequencer", "key::tests", "space_account", "evict::leases"),
    *("file::slots", "store::runs", "store::allocator", "format", "backlog"),
    *("shard::lookup", "shard::ghosts", "shard::entries", "evict::lists"),
    *("evict::namespaces", "evict::neighbours", "schedule"),
)
# They ask the system, take minutes as interpreted, or leak what the kernel still has.
_SKIPPED = (
    "a_long_run_is_found_a_bounded_part_at_a_time",
    "the_cheapest_window_is_the_cheapest",
    "a_scan_looks_at_some_and_goes_on",
    "what_comes_back_and_goes_again_is_young_again",
    "any_flipped_bit_is_seen",
    "what_is_under_way_cannot_be_taken_out",
    "a_refused_set_fails_and_gives_its_room_back",
    "growth_leaves_the_file_system_its_floor",
)
# Isolation is off for what tests ask of time and files.
_FLAGS = "-Zmiri-disable-isolation -Zmiri-strict-provenance"


def run(options: Options) -> Report:
    """Run as many of the tests as there is time for."""
    if call(["cargo", "+nightly", "miri", "--version"]).returncode != 0:
        return Report(skipped="no Miri: rustup component add --toolchain nightly miri rust-src")
    # What it takes to build is not counted.
    built = _miri(["--no-run"], "build")
    if built.returncode != 0:
        raise BuildError(f"the tests do not build: {_errors(built.stdout)}")
    report, tests, late = Report(), 0, []
    filters = options.arguments or tuple(from_seed(_FILTERS, options.seed))
    skips = [option for test in _SKIPPED for option in ("--skip", test)]
    deadline = time.monotonic() + options.seconds
    for name in filters:
        left_s = deadline - time.monotonic()
        if left_s < 1:
            late.append(name)
            continue
        # A line for each test, as it ends. The first error ends it.
        told = ("-Z", "unstable-options", "--format=json")
        done = _miri(["--", name, *skips, *told], name, left_s)
        passed = len(re.findall(r'^{ "type": "test".*"event": "ok"', done.stdout, re.M))
        tests += passed
        if done.returncode == TIMED_OUT:
            late.append(name)
        elif done.returncode != 0:
            report.findings.append(f"{_errors(done.stdout)} (cargo +nightly miri test {name})")
        elif not passed:
            report.findings.append(f"{name}: no test has this name")
    report.ran = f"{tests} tests of {len(filters) - len(late)} modules"
    if late:
        report.ran += f", not all of {len(late)} more"
        print(f"not run, or not to the end: {', '.join(late)}")
    return report


def _miri(arguments: list[str], name: str, timeout_s: float | None = None) -> CompletedProcess[str]:
    return call(
        ["cargo", "+nightly", "miri", "test", "--lib", *arguments],
        log=_BUILT / "logs" / f"{name.replace('::', '-')}.log",
        environment={
            "CARGO_TARGET_DIR": str(_BUILT),
            "MIRIFLAGS": _FLAGS,
            "PROPTEST_CASES": "4",
            "RUST_BACKTRACE": "0",
        },
        timeout_s=timeout_s,
    )


def _errors(output: str) -> str:
    found = re.findall(r"(?:error: .*|^test .* FAILED|^thread .* panicked.*)$", output, re.M)
    return "; ".join(found[:3]) or output[-300:]
