"""What the kernels' suites did, as a table."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter, defaultdict
from pathlib import Path

from tools.tool import REPOSITORY
from tools.vm.matrix import SuiteOutcome

RESULTS = REPOSITORY / "results" / "kernels.md"
PAGE = REPOSITORY / "docs" / "explanation" / "kernels.md"
_TARGETS = {
    "ext4": "ext4",
    "xfs": "XFS",
    "nvme": "bare drive",
    "4kn": "4Kn drive",
    "pi": "T10 PI type 1",
    "zoned": "zoned (refused)",
    "fdp": "FDP",
}
# The only reasons for which a test may be skipped, by kernel; "" is each of them.
_EXPECTED_SKIPS = {
    "5.10.": re.compile(r"the io_uring of this kernel has no registered memory"),
    "": re.compile(r"a simulation that is slow in emulation"),
}
_MARKS = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def problems(outcomes: list[SuiteOutcome]) -> list[str]:
    """Return a line for each failed test, and for each reason to skip that is not expected."""
    found = []
    for one in outcomes:
        place = f"{one.kernel}, {one.target}, {one.suite}"
        found += [f"failed: {place}: {name}" for name in one.failed]
        found += [
            f"skipped: {place}: {count} for {reason!r}"
            for reason, count in one.skipped.items()
            if not _is_expected(one.kernel, reason)
        ]
    return found


def _is_expected(kernel: str, reason: str) -> bool:
    return any(
        kernel.startswith(series) and pattern.search(reason)
        for series, pattern in _EXPECTED_SKIPS.items()
    )


def summary(outcomes: list[SuiteOutcome]) -> str:
    """Return a table with a line for each kernel and target."""
    cells: defaultdict[tuple[str, str], list[SuiteOutcome]] = defaultdict(list)
    for one in outcomes:
        cells[one.kernel, one.target].append(one)
    lines = ["| kernel | target | passed | failed | skipped | s |", "|---|---|--:|--:|---|--:|"]
    for (kernel, target), suites in cells.items():
        skipped: Counter[str] = sum((Counter(one.skipped) for one in suites), Counter())
        reasons = ", ".join(f"{count}: {reason}" for reason, count in skipped.items()) or "0"
        passed, failed = sum(one.passed for one in suites), sum(len(one.failed) for one in suites)
        seconds = sum(one.seconds for one in suites)
        lines.append(
            f"| {kernel} | {_TARGETS[target]} | {passed} | {failed} | {reasons} | {seconds:.0f} |"
        )
    return "\n".join(lines)


def overview(outcomes: list[SuiteOutcome]) -> str:
    """Return a table with a line for each kernel: tests passed, failed and skipped."""
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in outcomes:
        cell = counts[one.kernel, one.target]
        cell.update(passed=one.passed, failed=len(one.failed), skipped=sum(one.skipped.values()))
    kernels = list(dict.fromkeys(one.kernel for one in outcomes))
    # Without spaces, as in the reference: the length of the pages is counted by them.
    lines = [f"|Linux|{'|'.join(_TARGETS.values())}|", "|---|" + "---|" * len(_TARGETS)]
    for kernel in kernels:
        texts = []
        for target in _TARGETS:
            cell = counts[kernel, target]
            texts.append(f"{cell['passed']}/{cell['failed']}/{cell['skipped']}" if cell else "")
        lines.append(f"|{kernel}|{'|'.join(texts)}|")
    return "\n".join(lines)


def write_results(outcomes: list[SuiteOutcome]) -> Path:
    """Write the table and its conditions into the results, and an overview into the page."""
    # Targets of one kernel may have run at different commits.
    ran = dict.fromkeys(f"- Linux {x.kernel}: {x.date}, commit {x.commit}" for x in outcomes)
    runs = "\n".join(ran)
    suites = "\n".join(
        f"- {title}: {', '.join(dict.fromkeys(x.suite for x in outcomes if x.target == name))}"
        for name, title in _TARGETS.items()
    )
    failures = "\n".join(f"- {line}" for line in problems(outcomes)) or "None."
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        f"# Kernels\n\nWritten by `make vm`. QEMU (TCG) on {os.cpu_count()} host CPUs "
        f"({platform.machine()}); guest: 2 vCPUs, 1.5 GB of memory, emulated NVMe drives. "
        f"Seconds are those of emulation.\n\n{runs}\n\n{summary(outcomes)}\n\n"
        f"## Suites\n\n{suites}\n\n## Failures and unexpected skips\n\n{failures}\n",
        encoding="utf-8",
    )
    page = PAGE.read_text(encoding="utf-8")
    table = f"\n{overview(outcomes)}\n\n"
    PAGE.write_text(_MARKS.sub(lambda _: table, page), encoding="utf-8")
    return RESULTS
