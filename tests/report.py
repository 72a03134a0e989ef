"""What `make test` and `make check` print last: slow suites, what failed, and the counts of all.

    python tests/report.py DIRECTORY

reads rust.log (what `cargo test` printed) and python*.xml (pytest's JUnit reports) of a directory.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

_SHOWN_SUITES = 10
_RUST_SUITE = re.compile(r"^\s+(?:Running|Doc-tests) (?:unittests )?(\S+)", re.MULTILINE)
_RUST_RESULT = re.compile(
    r"^test result: .* (\d+) passed; (\d+) failed; (\d+) ignored;.* finished in ([\d.]+)s$",
    re.MULTILINE,
)
_RUST_FAILURE = re.compile(r"^test (\S+).* \.\.\. FAILED$", re.MULTILINE)


class Tally:
    """Counts by outcome and language, seconds by suite, and what failed."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def read_rust(self, log: str) -> None:
        """Add what `cargo test` printed: a line that names a suite, and later its result."""
        for part in re.split(r"(?m)^(?=\s+(?:Running|Doc-tests) )", log):
            named = _RUST_SUITE.match(part)
            suite = named[1] if named else "Rust"
            self.failed += [f"{suite} {name}" for name in _RUST_FAILURE.findall(part)]
            for passed, failed, skipped, seconds in _RUST_RESULT.findall(part):
                self.counts["Rust", "passed"] += int(passed)
                self.counts["Rust", "failed"] += int(failed)
                self.counts["Rust", "skipped"] += int(skipped)
                self.seconds[suite] += float(seconds)

    def read_python(self, report: Path) -> None:
        """Add a JUnit report of pytest, whose tests are summed up by file."""
        for case in ElementTree.parse(report).iter("testcase"):
            outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
            outcome = "failed" if outcomes - {"skipped"} else "skipped" if outcomes else "passed"
            self.counts["Python", outcome] += 1
            if outcome == "failed":
                self.failed.append(f"{case.get('classname')} {case.get('name')} ({report.stem})")
            suite = ".".join(
                part for part in case.get("classname", "").split(".") if not part[:1].isupper()
            )
            self.seconds[f"{suite} ({report.stem})"] += float(case.get("time", 0))

    def total(self, outcome: str) -> int:
        """Return how many tests of both languages ended so."""
        return self.counts["Rust", outcome] + self.counts["Python", outcome]


def main(directory: Path) -> None:
    """Print what the reports in a directory say; the counts come last."""
    tally = Tally()
    log = directory / "rust.log"
    if log.exists():
        tally.read_rust(log.read_text(errors="replace"))
    for report in sorted(directory.glob("python*.xml")):
        tally.read_python(report)
    print("slowest suites, in seconds (suites of Python run beside each other):")
    for suite, seconds in sorted(tally.seconds.items(), key=lambda item: -item[1])[:_SHOWN_SUITES]:
        print(f"  {seconds:7.1f}  {suite}")
    for test in tally.failed:
        print(f"failed: {test}")
    rust, python = tally.counts["Rust", "skipped"], tally.counts["Python", "skipped"]
    print(f"skips: {rust + python} ({rust} in Rust, {python} in Python, reasons above)")
    counts = [f"{tally.total(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")]
    print(f"total: {', '.join(counts)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
