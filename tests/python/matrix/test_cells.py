"""The cells that run in full in every `make test` have each value of each dimension."""

from tests.python.matrix.cells import (
    ENGINES,
    FILE_SYSTEMS,
    FULL,
    LAYOUTS,
    LOGICAL_BLOCKS_BYTES,
    RUNNING,
)


def test_each_value_runs_in_full() -> None:
    values = {value for cell in FULL for value in cell}
    assert values >= {*LAYOUTS, *ENGINES, *FILE_SYSTEMS, "raw", *LOGICAL_BLOCKS_BYTES}
    assert set(RUNNING) >= FULL
