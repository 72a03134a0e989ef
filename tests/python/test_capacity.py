"""The capacity: never exceeded on disk, whatever is stored, and what goes to keep to it."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    KIB,
    MIB,
    Client,
    disk_bytes,
    make_key,
    most_disk_bytes,
    pattern,
    run_child,
)
from tests.support.tuning import tuned

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


@pytest.mark.parametrize("eviction", ["lru", "s3fifo"])
@pytest.mark.parametrize("capacity_bytes", [16 * MIB, SMALL_BYTES, 33 * MIB + 12_345, 200 * MIB])
def test_the_disk_never_holds_more_than_the_capacity(
    open_client: Callable[..., Client], store_directory: Path, capacity_bytes: int, eviction: str
) -> None:
    """About three times what fits goes in, in two lives."""
    batches = capacity_bytes // (2 * MIB)
    stored: dict[str, int] = {}
    store_directory.mkdir()
    with most_disk_bytes(store_directory) as most:
        for life in range(2):
            client = open_client(capacity_bytes, eviction=eviction)
            stored |= store_at_random(client, life, batches)
            assert client.stat("used_bytes") <= capacity_bytes
            assert client.stat("evicted") > 0
            assert 0 < assert_held_chunks_are_whole(client, stored) < len(stored)
            client.assert_sound()
            client.connector.close()
    assert capacity_bytes * 3 // 4 < most[0] <= capacity_bytes


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


def test_many_small_chunks_count_with_their_index(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    """Each takes a block and a record of the index: both are part of the capacity."""
    client = open_client(16 * MIB)
    with most_disk_bytes(store_directory) as most:
        for batch in range(50):
            keys = [make_key(batch * 100 + number, "s" * 128) for number in range(100)]
            client.store(dict.fromkeys(keys, b"content"))
    assert client.exists(keys) == [True] * 100
    assert client.stat("evicted") > 0
    assert client.stat("keys") > 2000
    assert most[0] <= 16 * MIB


def test_a_full_store_makes_room(open_client: Callable[..., Client]) -> None:
    with tuned(low_watermark=1, high_watermark=1):
        client = open_client(SMALL_BYTES)
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(40)]
    client.store(dict.fromkeys(keys, content))
    held = client.exists(keys)
    assert 28 <= sum(held) < 32
    assert client.stat("evicted") == len(keys) - sum(held)
    assert client.stat("evicted_bytes") == (len(keys) - sum(held)) * MIB
    assert (client.stat("store_full"), client.stat("set_failed")) == (0, 0)
    assert [client.load(key, MIB) for key in keys] == [content if one else None for one in held]


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


def test_what_is_held_needs_no_room_to_be_stored_again(open_client: Callable[..., Client]) -> None:
    client = open_client(SMALL_BYTES)
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(24)]
    client.store(dict.fromkeys(keys, content))
    evicted = client.stat("evicted")
    client.store(dict.fromkeys(keys, content))
    assert client.stat("set_unchanged") == 24
    assert client.stat("evicted") == evicted
    assert client.delete(keys) == [True] * 24
    client.store(dict.fromkeys(keys, content))


def test_what_went_is_not_there_after_a_restart_either(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(SMALL_BYTES)
    chunks = {make_key(seed): pattern(MIB - seed * KIB, seed) for seed in range(40)}
    client.store(chunks)
    # Until then the store may go on making room by itself.
    client.connector.close()
    client = open_client(SMALL_BYTES)
    held = client.exists(list(chunks))
    assert 24 <= sum(held) < 32
    for (key, content), is_held in zip(chunks.items(), held, strict=True):
        assert client.load(key, len(content)) == (content if is_held else None)


def test_a_larger_capacity_gives_room_and_a_smaller_one_is_kept_to(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(60)]
    client = open_client(SMALL_BYTES)
    client.store(dict.fromkeys(keys, content))
    client.connector.close()
    client = open_client(3 * SMALL_BYTES)
    assert 24 <= sum(client.exists(keys)) < 32
    client.store(dict.fromkeys(keys, content))
    assert client.exists(keys) == [True] * 60
    client.connector.close()
    client = open_client(SMALL_BYTES)
    assert disk_bytes(store_directory) <= SMALL_BYTES
    held = client.exists(keys)
    assert 24 <= sum(held) < 32
    for key, is_held in zip(keys, held, strict=True):
        assert client.load(key, MIB) == (content if is_held else None)
