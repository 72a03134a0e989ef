"""The capacity: never exceeded on disk, whatever is stored, and what goes to keep to it."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import kvring
from tests.python.conftest import (
    MIB,
    Client,
    make_key,
    pattern,
    run_child,
)
from tests.support.disk_usage import disk_bytes, most_disk_bytes

SMALL_BYTES = 32 * MIB
SIZES_BYTES = (1, 4096, 70_001, 522_240, MIB, 3 * MIB)


def store_at_random(client: Client, seed: int, batches: int) -> dict[str, int]:
    """Store batches of chunks of all sizes; return the length in bytes of each."""
    chance = random.Random(seed)
    content = memoryview(pattern(3 * MIB, 1))
    stored: dict[str, int] = {}
    for _ in range(batches):
        sizes = {make_key(chance.getrandbits(64)): chance.choice(SIZES_BYTES) for _ in range(5)}
        completion = client.set(list(sizes), [content[:size] for size in sizes.values()])
        assert completion[1:] == (True, "", [True] * len(sizes))
        stored |= sizes
    return stored


def assert_held_chunks_are_whole(client: Client, stored: dict[str, int]) -> int:
    """Load what is held; return how many chunks that are.

    Some may go in between: the store makes room ahead of need, and leases a part only.
    """
    content = pattern(3 * MIB, 1)
    held = [key for key, hit in zip(stored, client.exists(list(stored)), strict=True) if hit]
    loaded = {key: client.load(key, stored[key]) for key in held}
    whole = [key for key, chunk in loaded.items() if chunk == content[: stored[key]]]
    assert all(loaded[key] is None for key in set(held) - set(whole))
    return len(whole)


def store_and_die(directory: str, capacity_bytes: int, seed: int) -> None:
    client = Client(kvring.Connector(directory, capacity_bytes))
    store_at_random(client, seed, 12)
    # More is under way when it ends.
    content = memoryview(pattern(3 * MIB, 1))
    for number in range(20):
        client.connector.submit_batch_set([make_key(number, "late")], [content[: 3 * MIB - seed]])
    os._exit(0)


def test_the_disk_keeps_to_the_capacity_when_the_process_dies_again_and_again(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    store_directory.mkdir()
    with most_disk_bytes(store_directory) as most:
        for seed in range(4):
            ended = run_child(store_and_die, str(store_directory), SMALL_BYTES, seed)
            assert (ended.returncode, ended.stderr) == (0, "")
    assert SMALL_BYTES * 3 // 4 < most[0] <= SMALL_BYTES
    client = open_client(SMALL_BYTES)
    client.assert_sound()
    stored = store_at_random(client, 99, 12)
    assert assert_held_chunks_are_whole(client, stored) > 0
    assert disk_bytes(store_directory) <= SMALL_BYTES


def test_what_cannot_go_is_said_and_unpinning_makes_room(
    open_client: Callable[..., Client],
) -> None:
    """Half of it pinned, a quarter leased, the longest chunk there is: that does not fit."""
    client = open_client(SMALL_BYTES)
    keys = [make_key(number) for number in range(24)]
    client.store(dict.fromkeys(keys, pattern(MIB, 1)))
    assert sum(client.connector.pin(keys)) == 16
    longest = pattern(client.stat("max_chunk_bytes"), 2)
    completion = client.set(["long"], [longest])
    assert (completion.ok, completion.results) == (False, [False])
    assert completion.error.startswith("store full: what would have to go")
    assert "unpin keys, or raise capacity" in completion.error
    assert client.stat("store_full") == client.stat("set_failed") == 1
    # What goes in vain is lost.
    assert client.exists(keys) == [True] * 24
    assert client.load("long", len(longest)) is None
    client.connector.unpin(keys)
    client.connector.close()
    client = open_client(SMALL_BYTES, lease_s=0)
    client.store({"long": longest})
    assert client.load("long", len(longest)) == longest
    assert client.exists(keys) == [False] * 24
