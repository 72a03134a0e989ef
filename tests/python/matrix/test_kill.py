"""The kill harness of tests/harness, on every cell of the matrix."""

import pytest

from tests.python.conftest import run_kill_harness
from tests.python.matrix.conftest import Store


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_wrong_after_kills(store: Store) -> None:
    if not store.is_device:
        store.path.mkdir()
    run_kill_harness(store.path, 200 if store.is_full else 20, store.cell.engine, store.cell.layout)
