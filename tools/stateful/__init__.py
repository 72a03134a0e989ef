"""Drives the whole Python connector by a state machine whose steps hypothesis draws and shrinks.

`python -m tools stateful --minutes 60 --seed 7`. A finding is the shortest list of steps that
was found, as Python code over `StoreMachine` (tools/stateful/machine.py).
"""

from __future__ import annotations

import time

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tools.stateful.machine import StoreMachine
from tools.tool import Options, Report

_EXAMPLES_IN_A_ROUND = 10
_STEPS = 40


def run(options: Options) -> Report:
    """Draw examples until the time is up, or one fails."""
    counts = {"examples": 0, "steps": 0}

    class Counting(StoreMachine):
        @invariant()
        def count(self) -> None:
            counts["steps"] += 1

        def teardown(self) -> None:
            counts["examples"] += 1
            super().teardown()

    report = Report()
    end_s = time.monotonic() + options.seconds
    number = options.seed * 1_000_000
    many = settings(
        max_examples=_EXAMPLES_IN_A_ROUND,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        while not report.findings and time.monotonic() < end_s:
            machine = seed(number)(Counting)
            try:
                run_state_machine_as_test(machine, settings=many)  # type: ignore[no-untyped-call]
            except Exception as error:  # noqa: BLE001 - whatever it is, a finding
                report.findings.append(_told(number, error))
            number += 1
    finally:
        StoreMachine.end_processes()
    report.ran = f"{counts['examples']:,} examples, {counts['steps']:,} steps"
    return report


def _told(number: int, error: BaseException) -> str:
    # A group where there are several bugs, or where it does not fail each time: the first will do.
    kind, error = type(error).__name__, getattr(error, "exceptions", (error,))[0]
    steps = "\n  ".join(getattr(error, "__notes__", ()))
    return f"seed {number}: {kind}: {type(error).__name__}: {error}\n  {steps}"
