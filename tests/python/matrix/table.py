"""A table of what ran of the matrix."""

from collections import Counter

import pytest

from tests.python.matrix.cells import CELLS, CHOICE, Form


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print of every cell what became of it, if any of them was selected."""
    counts: dict[str, Counter[str]] = {str(cell): Counter() for cell in CELLS}
    reasons: dict[str, set[str]] = {name: set() for name in counts}
    seconds: Counter[str] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            name = _cell_of(report)
            if name is None:
                continue
            seconds[name] += report.duration
            if outcome:
                counts[name]["failed" if outcome == "error" else outcome] += 1
            if outcome == "skipped":
                reasons[name].add(report.longrepr[2].removeprefix("Skipped: "))
    if not any(counts.values()):
        return
    terminalreporter.write_sep("=", f"test matrix, KVRING_MATRIX={CHOICE}")
    width = max(map(len, counts))
    for cell, form in CELLS.items():
        line = _describe(form, counts[str(cell)], reasons[str(cell)])
        terminalreporter.write_line(f"{cell!s:{width}}  {seconds[str(cell)]:4.0f} s  {line}")


def _cell_of(report: object) -> str | None:
    # What was deselected has no report.
    if not isinstance(report, pytest.TestReport):
        return None
    return next((str(value) for name, value in report.user_properties if name == "cell"), None)


def _describe(form: Form, counts: Counter[str], reasons: set[str]) -> str:
    if form is Form.LEFT_OUT:
        return f"left out by KVRING_MATRIX={CHOICE}"
    if not counts:
        return "no test of it was selected"
    ran = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    form_ran = form.value if counts["passed"] + counts["failed"] else "skipped"
    return f"{form_ran:7} {ran}" + "".join(f" ({reason})" for reason in sorted(reasons))
