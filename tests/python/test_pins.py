"""Pins and leases: what must not go, for how long, and how much of it there may be."""

from collections.abc import Callable

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_key, pattern

CAPACITY_BYTES = 32 * MIB
CONTENT = pattern(MIB, 1)
KEYS = [make_key(number) for number in range(24)]


def flood(client: Client, salt: str = "flood") -> None:
    """Store three times what fits, a chunk at a time: each must find room."""
    for number in range(3 * CAPACITY_BYTES // MIB):
        client.store({make_key(number, salt): CONTENT})


@pytest.fixture
def client(open_client: Callable[..., Client]) -> Client:
    """A store in which EXISTS leases nothing, with some chunks."""
    client = open_client(CAPACITY_BYTES, lease_s=0)
    client.store(dict.fromkeys(KEYS, CONTENT))
    return client


def test_pin_tells_what_is_pinned_and_unpin_what_was(client: Client) -> None:
    connector = client.connector
    assert connector.pin([KEYS[0], "none", KEYS[1]]) == [True, False, True]
    assert connector.pin(KEYS[:1]) == [True]
    assert client.stat("pinned_bytes") == 2 * MIB
    assert connector.unpin([KEYS[0], "none", KEYS[2]]) == [True, False, False]
    assert connector.unpin(KEYS[:1]) == [False]
    assert client.stat("pinned_bytes") == MIB
    assert connector.pin([]) == connector.unpin([]) == []


def test_half_of_the_capacity_at_most_is_pinned(client: Client) -> None:
    assert client.connector.pin(KEYS) == [True] * 16 + [False] * 8
    assert client.stat("pinned_bytes") == CAPACITY_BYTES // 2
    client.connector.unpin(KEYS[:1])
    assert client.connector.pin(KEYS[-1:]) == [True]
    flood(client)
    assert sum(client.exists(KEYS)) == 16


def test_a_deleted_key_is_not_pinned_any_more(client: Client) -> None:
    client.connector.pin(KEYS[:1])
    client.delete(KEYS[:1])
    assert client.stat("pinned_bytes") == 0
    assert client.exists(KEYS[:1]) == [False]
    client.store({KEYS[0]: CONTENT})
    assert client.connector.unpin(KEYS[:1]) == [False]
    flood(client)
    assert client.exists(KEYS[:1]) == [False]


def test_pins_end_with_the_session(open_client: Callable[..., Client], client: Client) -> None:
    client.connector.pin(KEYS)
    client.connector.close()
    with pytest.raises(kvring.ClosedError):
        client.connector.pin(KEYS)
    with pytest.raises(kvring.ClosedError):
        client.connector.unpin(KEYS)
    client = open_client(CAPACITY_BYTES, lease_s=0)
    assert client.stat("pinned_bytes") == 0
    flood(client)
    assert client.exists(KEYS) == [False] * 24


def test_what_exists_found_stays_for_the_time_of_its_lease(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(CAPACITY_BYTES, lease_s=3600)
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.exists([*KEYS[:4], "none"]) == [True] * 4 + [False]
    assert client.stat("leased_bytes") == 4 * MIB
    # Asked for again it counts once.
    assert client.exists(KEYS[:4]) == [True] * 4
    assert client.stat("leased_bytes") == 4 * MIB
    flood(client)
    assert [client.load(key, MIB) for key in KEYS] == [CONTENT] * 4 + [None] * 20
    assert client.stat("leases_refused") == 0
    client.delete(KEYS[:4])
    assert client.stat("leased_bytes") == 0


def test_a_quarter_of_the_capacity_at_most_is_leased(open_client: Callable[..., Client]) -> None:
    client = open_client(CAPACITY_BYTES, lease_s=3600)
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.exists(KEYS) == [True] * 24
    assert client.stat("leased_bytes") == CAPACITY_BYTES // 4
    assert client.stat("leases_refused") == 16
    flood(client)
    assert [client.load(key, MIB) is not None for key in KEYS] == [True] * 8 + [False] * 16
