"""Who goes when room is needed, and that room is made ahead of need."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import kvring
from tests.python.conftest import KIB, MIB, Client, make_key, pattern, run_child

CAPACITY_BYTES = 16 * MIB
CHUNK_BYTES = 256 * KIB
CONTENT = pattern(CHUNK_BYTES, 1)
# About as many chunks as fit.
ROOM_CHUNKS = 56
GROUP_CHUNKS = 10
# Stored first and used often, stored then and used once, stored last and not used.
OFTEN = [make_key(number) for number in range(GROUP_CHUNKS)]
ONCE = [make_key(100 + number) for number in range(GROUP_CHUNKS)]
NEVER = [make_key(200 + number) for number in range(GROUP_CHUNKS)]
LATER = [make_key(300 + number) for number in range(ROOM_CHUNKS - 10)]


class Outcome(NamedTuple):
    """Which share of a group is still held: at least, at most."""

    often: tuple[float, float]
    once: tuple[float, float]
    never: tuple[float, float]
    later: tuple[float, float]


ALL = (1.0, 1.0)
MOST = (0.6, 1.0)
SOME = (0.3, 0.9)
FEW = (0.0, 0.4)
NONE = (0.0, 0.0)

# What is left when a part of the store had to go. Among those that go first, places decide as
# well: so not to a chunk.
OUTCOMES = {
    "lru": Outcome(often=FEW, once=MOST, never=NONE, later=ALL),
    "lfu": Outcome(often=ALL, once=MOST, never=FEW, later=SOME),
    "fifo": Outcome(often=NONE, once=FEW, never=MOST, later=ALL),
    "mru": Outcome(often=ALL, once=MOST, never=ALL, later=SOME),
    "s3fifo": Outcome(often=ALL, once=ALL, never=NONE, later=SOME),
}


def store_each(client: Client, keys: list[str]) -> None:
    """Store chunks one after the other, so that their order is known."""
    for key in keys:
        client.store({key: CONTENT})


def store_and_use(client: Client) -> None:
    store_each(client, OFTEN + ONCE + NEVER)
    for key in OFTEN * 3 + ONCE:
        assert client.load(key, CHUNK_BYTES) == CONTENT
    assert client.stat("evicted") == 0


def store_use_and_die(directory: str, eviction: str) -> None:
    store_and_use(Client(kvring.Connector(directory, CAPACITY_BYTES, eviction=eviction)))
    os._exit(0)


@pytest.mark.parametrize(
    ("eviction", "restart"),
    [
        *((eviction, "no restart") for eviction in OUTCOMES),
        *((eviction, "close") for eviction in OUTCOMES),
        ("lfu", "death"),
    ],
)
def test_who_goes(
    open_client: Callable[..., Client], store_directory: Path, eviction: str, restart: str
) -> None:
    """When and how often chunks were used is known after a restart too."""
    if restart == "death":
        ended = run_child(store_use_and_die, str(store_directory), eviction)
        assert (ended.returncode, ended.stderr) == (0, "")
    else:
        client = open_client(CAPACITY_BYTES, eviction=eviction)
        store_and_use(client)
        if restart == "close":
            client.connector.close()
    if restart != "no restart":
        client = open_client(CAPACITY_BYTES, eviction=eviction)
    store_each(client, LATER)
    held = {
        group: sum(client.exists(keys)) / len(keys)
        for group, keys in (("often", OFTEN), ("once", ONCE), ("never", NEVER), ("later", LATER))
    }
    assert client.stat("evicted") > ROOM_CHUNKS // 3
    expected = OUTCOMES[eviction]._asdict()
    if eviction == "s3fifo" and restart != "no restart":
        # A new life begins with the latest tenth in the small queue; the rest has got past it.
        expected["never"] = (0.0, 1.0)
    wrong = {
        group: share
        for group, share in held.items()
        if not expected[group][0] <= share <= expected[group][1]
    }
    assert not wrong, f"{held}, expected {expected}"
