"""The capacity is never exceeded, and what is held is right, on every cell of the matrix."""

import random
from typing import Any

from tests.python.conftest import MIB, Client, make_key, pattern
from tests.python.matrix.conftest import CAPACITY_BYTES, Store

SIZES_BYTES = (1, 4096, 70_001, 522_240, MIB, 3 * MIB)
CONTENT = pattern(4 * MIB, 1)


def chunk(number: int, length_bytes: int) -> bytes:
    return CONTENT[number % 10_000 :][:length_bytes]


def store_at_random(client: Client, seed: int, total_bytes: int) -> dict[str, bytes]:
    """Store chunks of all sizes; return them."""
    chance = random.Random(seed)
    stored: dict[str, bytes] = {}
    while total_bytes > 0:
        numbers = [chance.getrandbits(60) for _ in range(5)]
        chunks = {make_key(one): chunk(one, chance.choice(SIZES_BYTES)) for one in numbers}
        client.store(chunks)
        stored |= chunks
        total_bytes -= sum(map(len, chunks.values()))
    return stored


def assert_held_chunks_are_whole(client: Client, stored: dict[str, bytes]) -> int:
    """Load what is held, and return how many bytes that is.

    Some may go in between: the store makes room ahead of need.
    """
    hits = client.exists(list(stored))
    held = [key for key, hit in zip(stored, hits, strict=True) if hit]
    loaded = {key: client.load(key, len(stored[key])) for key in held}
    assert all(found in (None, stored[key]) for key, found in loaded.items())
    return sum(len(found or b"") for found in loaded.values())


def test_what_a_full_store_takes_stays_within_the_capacity(store: Store) -> None:
    """Several times what fits goes in, in two lives."""
    stored: dict[str, bytes] = {}
    turns = 4 if store.is_full else 2
    options: dict[str, Any] = {"lease_s": 0}
    if store.is_device:
        # What it was full of before stays to be seen.
        options["discard"] = "never"
    with store.most_taken_bytes() as most:
        for life in range(2):
            client = store.open(**options)
            stored |= store_at_random(client, life, turns * CAPACITY_BYTES // 2)
            assert client.stat("used_bytes") <= CAPACITY_BYTES
            assert client.stat("evicted") > 0
            assert assert_held_chunks_are_whole(client, stored) > CAPACITY_BYTES // 3
            client.assert_sound()
            client.connector.close()
    assert CAPACITY_BYTES * 3 // 4 < most[0] <= CAPACITY_BYTES
