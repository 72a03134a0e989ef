"""What was answered is found after a close and after a kill, on every cell of the matrix."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_key, pattern
from tests.python.matrix.cells import Cell
from tests.python.matrix.conftest import Store

CHUNKS = {
    # Some keys are so long that their records are chains.
    make_key(number, "s" * 100 if number % 4 else "") + "x" * (number % 8 // 7 * 3000): pattern(
        1 + number**2 * 97, number
    )
    for number in range(80)
}
KEYS = list(CHUNKS)
GONE = KEYS[1::8]
REPLACED = {key: pattern(50_001, 1000 + number) for number, key in enumerate(KEYS[2::8])}
EXPECTED = {key: chunk for key, chunk in CHUNKS.items() if key not in GONE} | REPLACED
LATE = {make_key(number, "late"): pattern(MIB - number, 2000 + number) for number in range(8)}


def store_all(client: Client) -> None:
    """Store all chunks, replace some and delete others."""
    for first in range(0, len(KEYS), 16):
        client.store({key: CHUNKS[key] for key in KEYS[first : first + 16]})
    client.store(REPLACED)
    assert client.delete(GONE) == [True] * len(GONE)


def assert_all_there(client: Client) -> None:
    assert client.exists(GONE) == [False] * len(GONE)
    assert client.exists(list(EXPECTED)) == [True] * len(EXPECTED)
    for key, chunk in EXPECTED.items():
        assert client.load(key, len(chunk)) == chunk
    client.assert_sound()


@pytest.mark.parametrize("durability", ["best_effort", "persistent"])
def test_a_closed_store_has_everything_when_it_opens_again(store: Store, durability: str) -> None:
    client = store.open(durability=durability)
    store_all(client)
    for _ in range(3):
        closed = client.connector.close()
        assert (closed["shutdown_clean"], closed["abandoned"]) == (True, 0)
        client = store.open(durability=durability)
        recovery = client.connector.recovery
        assert (recovery["clean_shutdown"], recovery["reset"]) == (True, None)
        assert (recovery["kept"], recovery["torn"], recovery["orphans"]) == (len(EXPECTED), 0, 0)
        assert_all_there(client)


def work_until_killed(path: str, cell: Cell, durability: str) -> None:
    """Store all, say so, and go on storing."""
    place = Store(Cell(*cell), Path(path))
    client = place.open(durability=durability)
    store_all(client)
    print("ready", flush=True)
    while True:
        client.store(LATE)
        client.delete(list(LATE))


@pytest.mark.parametrize("durability", ["best_effort", "persistent"])
def test_a_killed_process_loses_nothing_that_was_answered(
    store: Store, start_child: Callable[..., subprocess.Popen[str]], durability: str
) -> None:
    for life in range(2 if store.is_full else 1):
        # In a process of its own, with chunks under way when it is killed.
        child = start_child(work_until_killed, str(store.path), tuple(store.cell), durability)
        with pytest.raises(kvring.InUseError, match=f"process {child.pid} on host"):
            store.open()
        child.kill()
        child.wait()
        client = store.open(durability=durability)
        recovery = client.connector.recovery
        assert (recovery["clean_shutdown"], recovery["reset"]) == (False, None)
        assert recovery["kept"] >= len(EXPECTED), f"life {life}"
        for key, chunk in LATE.items():
            assert client.load(key, len(chunk)) in (None, chunk)
        assert_all_there(client)
        client.connector.close()
