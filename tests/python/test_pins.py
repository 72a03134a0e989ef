"""Pins and leases: what must not go, for how long, and how much of it there may be."""

from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import MIB, Client, age, make_key, pattern

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


def test_what_is_pinned_stays_and_the_rest_goes(client: Client) -> None:
    client.connector.pin(KEYS[:8])
    flood(client)
    assert client.exists(KEYS) == [True] * 8 + [False] * 16
    assert [client.load(key, MIB) for key in KEYS[:8]] == [CONTENT] * 8
    client.connector.unpin(KEYS[:8])
    flood(client, "another")
    assert client.exists(KEYS) == [False] * 24
    assert client.stat("pinned_bytes") == 0


def test_half_of_the_capacity_at_most_is_pinned(client: Client) -> None:
    assert client.connector.pin(KEYS) == [True] * 16 + [False] * 8
    assert client.stat("pinned_bytes") == CAPACITY_BYTES // 2
    client.connector.unpin(KEYS[:1])
    assert client.connector.pin(KEYS[-1:]) == [True]
    flood(client)
    assert sum(client.exists(KEYS)) == 16


def test_small_chunks_are_pinned_by_the_place_they_take(
    open_client: Callable[..., Client],
) -> None:
    """A byte takes a block: else pins of small chunks could fill the store for good."""
    client = open_client(16 * MIB, lease_s=0)
    keys = [make_key(number) for number in range(3000)]
    client.store(dict.fromkeys(keys, b"content"))
    is_pinned = client.connector.pin(keys)
    assert sum(is_pinned) == 2048
    assert client.stat("pinned_bytes") == 8 * MIB
    for number in range(32):
        client.store({make_key(number, "flood"): CONTENT})
    pinned = [key for key, one in zip(keys, is_pinned, strict=True) if one]
    assert client.exists(pinned) == [True] * 2048


def test_what_is_pinned_does_not_expire(
    client: Client, open_client: Callable[..., Client], store_directory: Path
) -> None:
    client, wait = age(client, store_directory, open_client, capacity=CAPACITY_BYTES, lease_s=0)
    client.connector.pin(KEYS[:2])
    wait()
    assert client.exists(KEYS) == [True] * 2 + [False] * 22
    assert client.connector.expire() == 22
    assert client.load(KEYS[0], MIB) == CONTENT
    client.connector.unpin(KEYS[:2])
    # One was used just now.
    assert client.exists(KEYS[:2]) == [True, False]
    assert client.connector.expire() == 1


def test_a_deleted_key_is_not_pinned_any_more(client: Client) -> None:
    client.connector.pin(KEYS[:1])
    client.delete(KEYS[:1])
    assert client.stat("pinned_bytes") == 0
    assert client.exists(KEYS[:1]) == [False]
    client.store({KEYS[0]: CONTENT})
    assert client.connector.unpin(KEYS[:1]) == [False]
    flood(client)
    assert client.exists(KEYS[:1]) == [False]


def test_a_replaced_key_stays_pinned(client: Client) -> None:
    other = pattern(MIB - 1, 2)
    client.connector.pin(KEYS[:1])
    client.store({KEYS[0]: other})
    assert client.stat("pinned_bytes") == MIB
    flood(client)
    assert client.load(KEYS[0], len(other)) == other
    assert client.connector.unpin(KEYS[:1]) == [True]
    assert client.stat("pinned_bytes") == 0


def test_a_key_that_is_replaced_by_more_than_may_be_pinned_loses_its_pin(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(CAPACITY_BYTES, lease_s=0)
    client.store(dict.fromkeys(KEYS, b"content"))
    assert client.connector.pin(KEYS) == [True] * 24
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert 15 * MIB <= client.stat("pinned_bytes") <= CAPACITY_BYTES // 2
    flood(client)
    assert 15 <= sum(client.exists(KEYS)) <= 16
    assert client.stat("pinned_bytes") == sum(client.connector.unpin(KEYS)) * MIB


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


def test_a_lease_ends(open_client: Callable[..., Client]) -> None:
    client = open_client(CAPACITY_BYTES, lease_s=1)
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.exists(KEYS[:4]) == [True] * 4
    assert client.stat("leased_bytes") == 4 * MIB
    client.wait_until(lambda: client.stat("leased_bytes") == 0)
    flood(client)
    assert [client.load(key, MIB) for key in KEYS[:4]] == [None] * 4


def test_a_quarter_of_the_capacity_at_most_is_leased(open_client: Callable[..., Client]) -> None:
    client = open_client(CAPACITY_BYTES, lease_s=3600)
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.exists(KEYS) == [True] * 24
    assert client.stat("leased_bytes") == CAPACITY_BYTES // 4
    assert client.stat("leases_refused") == 16
    flood(client)
    assert [client.load(key, MIB) is not None for key in KEYS] == [True] * 8 + [False] * 16


def test_small_chunks_are_leased_by_the_place_they_take(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(16 * MIB, lease_s=3600)
    keys = [make_key(number) for number in range(3000)]
    client.store(dict.fromkeys(keys, b"content"))
    client.exists(keys)
    assert client.stat("leased_bytes") == 4 * MIB
    assert client.stat("leases_refused") == 3000 - 1024


def test_without_a_lease_nothing_stays(client: Client) -> None:
    assert client.exists(KEYS[:4]) == [True] * 4
    assert (client.stat("leased_bytes"), client.stat("leases_refused")) == (0, 0)
    flood(client)
    assert client.exists(KEYS[:4]) == [False] * 4


def test_pins_and_leases_together_leave_room(open_client: Callable[..., Client]) -> None:
    client = open_client(CAPACITY_BYTES, lease_s=3600)
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert sum(client.connector.pin(KEYS)) == 16
    assert client.exists(KEYS[16:]) == [True] * 8
    flood(client)
    assert [client.load(key, MIB) for key in KEYS] == [CONTENT] * 24
