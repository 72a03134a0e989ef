"""What was answered is found after a close and after a kill, on every cell of the matrix."""

import pytest

from tests.python.conftest import Client, make_key, pattern
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
