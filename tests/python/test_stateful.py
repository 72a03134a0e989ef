"""The state machine of tools/stateful/machine.py, with few steps, the same in each run."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tools.stateful.machine import StoreMachine


def test_what_is_stored_is_what_the_model_says() -> None:
    few = settings(
        derandomize=True,
        max_examples=12,
        stateful_step_count=25,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(StoreMachine, settings=few)  # type: ignore[no-untyped-call]
    finally:
        StoreMachine.end_processes()
