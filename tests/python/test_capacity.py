"""The capacity: never exceeded on disk, and what is said once it is reached."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.python.conftest import KIB, MIB, Client, disk_bytes, make_key, pattern

SMALL_BYTES = 32 * MIB


@contextmanager
def most_disk_bytes(directory: Path) -> Iterator[list[int]]:
    """Look at the disk all the time; the one number in the list is the most there ever was."""
    most = [0]
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            most[0] = max(most[0], disk_bytes(directory))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()
        most[0] = max(most[0], disk_bytes(directory))


@pytest.mark.parametrize("capacity_bytes", [16 * MIB, SMALL_BYTES, 33 * MIB + 12_345, 200 * MIB])
def test_the_disk_never_holds_more_than_the_capacity(
    open_client: Callable[..., Client], store_directory: Path, capacity_bytes: int
) -> None:
    chance = random.Random(1)
    content = pattern(3 * MIB, 1)
    client = open_client(capacity_bytes)
    held: list[str] = []
    failures = 0
    with most_disk_bytes(store_directory) as most:
        while failures < 30:
            keys = [make_key(chance.getrandbits(64)) for _ in range(chance.randint(1, 8))]
            sizes = [chance.choice([1, 4096, 70_001, 522_240, MIB, 3 * MIB]) for _ in keys]
            views = [memoryview(content)[:size_bytes] for size_bytes in sizes]
            completion = client.set(keys, views)
            held += [key for key, stored in zip(keys, completion.results, strict=True) if stored]
            assert disk_bytes(store_directory) <= capacity_bytes
            assert client.stat("used_bytes") <= capacity_bytes
            if not completion.ok:
                failures += 1
                chance.shuffle(held)
                client.delete([held.pop() for _ in range(len(held) // 4)])
    assert capacity_bytes * 3 // 4 < most[0] <= capacity_bytes
    client.connector.close()
    assert disk_bytes(store_directory) <= capacity_bytes
    client = open_client(capacity_bytes)
    assert client.exists(held) == [True] * len(held)
    assert disk_bytes(store_directory) <= capacity_bytes


def test_many_small_chunks_count_with_their_index(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    """Each takes a block and a record of the index: both are part of the capacity."""
    client = open_client(16 * MIB)
    with most_disk_bytes(store_directory) as most:
        for batch in range(50):
            keys = [make_key(batch * 100 + number, "s" * 128) for number in range(100)]
            completion = client.set(keys, [b"content"] * len(keys))
    assert not completion.ok
    assert completion.results == [False] * 100
    assert client.stat("keys") > 2000
    assert most[0] <= 16 * MIB


def test_a_full_store_says_so_and_deleting_makes_room(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(SMALL_BYTES)
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(40)]
    completion = client.set(keys, [content] * len(keys))
    assert not completion.ok
    assert completion.error.startswith("store full")
    assert str(SMALL_BYTES) in completion.error
    assert "delete chunks or raise capacity" in completion.error
    assert all(type(stored) is bool for stored in completion.results)
    stored_count = sum(completion.results)
    assert 28 <= stored_count < 32
    assert client.exists(keys) == completion.results
    assert client.stat("store_full") == client.stat("set_failed") == len(keys) - stored_count
    again = client.set(["again"], [content])
    assert (again.ok, again.results) == (False, [False])
    held = [key for key, stored in zip(keys, completion.results, strict=True) if stored]
    client.delete(held[:2])
    client.store({"again": content})
    assert client.load("again", MIB) == content
    assert [client.load(key, MIB) for key in held] == [None] * 2 + [content] * (len(held) - 2)


def test_a_full_store_still_answers_everything_else(open_client: Callable[..., Client]) -> None:
    client = open_client(SMALL_BYTES)
    content = pattern(MIB, 1)
    number = 0
    while client.set([str(number)], [content]).ok:
        number += 1
    assert number >= 28
    # The same bytes again need no room.
    client.store({"0": content})
    assert client.exists(["0", str(number)]) == [True, False]
    assert client.load("0", MIB) == content
    assert client.delete([str(one) for one in range(number)]) == [True] * number
    client.store({str(one): content for one in range(number)})


def test_what_did_not_fit_is_not_there_after_a_restart_either(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(SMALL_BYTES)
    chunks = {make_key(seed): pattern(MIB - seed * KIB, seed) for seed in range(40)}
    completion = client.set(list(chunks), list(chunks.values()))
    client.connector.close()
    client = open_client(SMALL_BYTES)
    assert client.exists(list(chunks)) == completion.results
    for (key, content), stored in zip(chunks.items(), completion.results, strict=True):
        assert client.load(key, len(content)) == (content if stored else None)


def test_a_larger_capacity_gives_room_and_a_smaller_one_is_kept_to(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(60)]
    client = open_client(SMALL_BYTES)
    first = client.set(keys, [content] * len(keys))
    client.connector.close()
    client = open_client(3 * SMALL_BYTES)
    assert client.exists(keys) == first.results
    client.store(dict.fromkeys(keys, content))
    client.connector.close()
    client = open_client(SMALL_BYTES)
    assert disk_bytes(store_directory) <= SMALL_BYTES
    for key, held in zip(keys, client.exists(keys), strict=True):
        assert client.load(key, MIB) == (content if held else None)
