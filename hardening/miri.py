"""Miri, which sees every access to memory, over the unit tests of what makes no system calls.

Arguments are filters of test names, as of `cargo test`; none stands for the list below.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from subprocess import CompletedProcess

from hardening.planted import built_in, patches_of, tree_with
from hardening.tool import OUTPUT, REPOSITORY, Options, Report, call

BUILT = OUTPUT / "miri"

# Modules, in the order in which they run. What has unsafe code comes first.
FILTERS = (
    *("engine::requests", "reactor::piece", "buffer", "batch_completion", "segmented_vec"),
    *("index::lookup", "index::entries", "index::map", "format", "key::", "checksum"),
    *("store::allocator", "store::runs", "evict::lists", "evict::extent_map", "schedule"),
    *("evict::neighbours", "evict::namespaces", "index::slots", "index::ghosts", "index::leases"),
    *("backlog", "progress", "placement", "capacity", "reactor::errnos"),
)
# They ask the system, take minutes as interpreted, or leak what the kernel still has.
SKIPPED = (
    "long_blocks_are",
    "pool_reuses_by_size",
    "what_is_under_way_cannot_be_taken_out",
    "a_refused_set_fails_and_gives_its_room_back",
)
# Isolation is off for what tests ask of time and files.
FLAGS = "-Zmiri-disable-isolation -Zmiri-strict-provenance"
HANG_S = 480.0


def run(options: Options) -> Report:
    """Run the tests of as many modules as there is time for."""
    if call(["cargo", "+nightly", "miri", "--version"]).returncode != 0:
        return Report(skipped="no Miri: rustup component add --toolchain nightly miri rust-src")
    if not options.planted:
        return _search(options.arguments or FILTERS, options.seconds)
    found, findings = 0, []
    patches = patches_of("miri")
    for patch in patches:
        where, words = re.findall(r"^Found by: (.*)\nAs: (.*)$", patch.read_text(), re.M)[0]
        with tree_with(patch) as tree:
            report = _search((where,), HANG_S, tree)
        if any(words in finding for finding in report.findings):
            found += 1
        else:
            findings.append(f"{patch.name}: not found by {where}: {report}")
    return Report(ran=f"{found} of {len(patches)} planted bugs found", findings=findings)


def _search(filters: tuple[str, ...], seconds: float, tree: Path = REPOSITORY) -> Report:
    report = Report()
    # What it takes to build is not counted.
    built = _miri(["--no-run"], "build", tree, None)
    if built.returncode != 0:
        return Report(findings=[f"cannot be built: {_errors(built.stdout)}"])
    ends_s = time.monotonic() + seconds
    tests, late = 0, []
    for name in filters:
        left_s = ends_s - time.monotonic()
        if left_s < 1:
            late.append(name)
            continue
        skips = [option for test in SKIPPED for option in ("--skip", test)]
        done = _miri(["--", name, *skips], name, tree, min(left_s, HANG_S))
        tests += sum(map(int, re.findall(r"(\d+) passed", done.stdout)))
        if done.returncode == 124:
            late.append(name)
        elif done.returncode != 0:
            report.findings.append(f"{name}: {_errors(done.stdout)} (cargo +nightly miri test)")
    done_count = len(filters) - len(late)
    report.ran = f"{tests} tests of {done_count} modules"
    if late:
        report.ran += f", no time for {', '.join(late)}"
    return report


def _miri(
    arguments: list[str], name: str, tree: Path, timeout_s: float | None
) -> CompletedProcess[str]:
    return call(
        ["cargo", "+nightly", "miri", "test", "--lib", *arguments],
        log=BUILT / "logs" / f"{name.replace('::', '-')}.log",
        environment={
            "CARGO_TARGET_DIR": str(built_in(BUILT, tree)),
            "MIRIFLAGS": FLAGS,
            "PROPTEST_CASES": "4",
            "RUST_BACKTRACE": "0",
        },
        directory=tree,
        timeout_s=timeout_s,
    )


def _errors(output: str) -> str:
    found = re.findall(r"(?:error: .*|^test .* FAILED|^thread .* panicked.*)$", output, re.M)
    return "; ".join(found[:3]) or output[-300:]
