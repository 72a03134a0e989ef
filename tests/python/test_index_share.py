"""The index has its share of the space, whether capacity or the file system bounds the store."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import KIB, MIB, Client, pattern
from tests.support.devices import loop_device

LARGE_BYTES = MIB
SMALL_BYTES = 16 * KIB
SOURCE = memoryview(pattern(LARGE_BYTES + 64 * KIB, 1))
LAYOUTS = ["extents", "files"]

Open = Callable[..., Client]


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Make an empty ext4 of a size, without blocks for root; it is removed at the end."""
    with ExitStack() as stack:

        def make(size_bytes: int) -> Path:
            options = ("-m", "0", "-b", "4096")
            device = loop_device(tmp_path, "ext4", size_bytes, *options)
            return stack.enter_context(device).directory

        yield make


@pytest.fixture
def open_store(make_disk: object) -> Iterator[Open]:
    """Open a store that the test chooses the path of; it is closed before its disk goes."""
    connectors: list[kvring.Connector] = []

    def build(path: Path, capacity: int, **options: Any) -> Client:
        options = {"lease_s": 0, "eviction": "lru", "min_free": 0} | options
        connectors.append(kvring.Connector(path, capacity, **options))
        return Client(connectors[-1])

    yield build
    for connector in connectors:
        connector.close()


def fill(client: Client, name: str, length_bytes: int, size_bytes: int) -> None:
    """Store chunks of one length, so many bytes of them, all of which must be stored."""
    count = size_bytes // length_bytes
    batch = max(1, 4 * MIB // length_bytes)
    for first in range(0, count, batch):
        numbers = range(first, min(count, first + batch))
        buffers = [SOURCE[number % 1000 * 64 :][:length_bytes] for number in numbers]
        completion = client.set([f"{name}-{number}" for number in numbers], buffers)
        assert completion.ok, completion.error


def fill_up(path: Path) -> None:
    """Take all that a file system has left with one file."""
    with path.open("wb") as other:
        for step_bytes in (16 * MIB, MIB, 64 * KIB, 4 * KIB):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(other.fileno(), os.fstat(other.fileno()).st_size, step_bytes)


def held_part(client: Client) -> float:
    """Return which part of what the store takes on disk are chunks."""
    return client.stat("stored_bytes") / client.stat("used_bytes")


@pytest.mark.root
@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_chunks_after_large_ones_where_the_file_system_is_the_bound(
    make_disk: Callable[[int], Path], open_store: Open, layout: str
) -> None:
    directory = make_disk(512 * MIB)
    client = open_store(directory / "store", 2048 * MIB, layout=layout)
    fill(client, "large", LARGE_BYTES, 640 * MIB)
    assert held_part(client) > 0.9
    fill(client, "small", SMALL_BYTES, 640 * MIB)
    assert held_part(client) > 0.85, client.connector.stats()
    assert client.stat("index_full") <= client.stat("evicted") // 100
    client.assert_sound()


@pytest.mark.root
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size_mib", [40, 60])
def test_a_store_on_a_small_file_system_stores(
    make_disk: Callable[[int], Path], open_store: Open, size_mib: int, layout: str
) -> None:
    directory = make_disk(size_mib * MIB)
    client = open_store(directory / "store", 1024 * MIB, layout=layout)
    fill(client, "large", LARGE_BYTES, 100 * MIB)
    fill(client, "small", SMALL_BYTES, 100 * MIB)
    assert held_part(client) > 0.7, client.connector.stats()
    client.assert_sound()


@pytest.mark.root
def test_a_store_whose_data_files_took_everything_recovers_when_it_is_opened(
    make_disk: Callable[[int], Path], open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """As a store was left before: the file system full of data files, no space for the index."""
    directory = make_disk(512 * MIB)
    path = directory / "store"
    client = open_store(path, 2048 * MIB)
    fill(client, "large", LARGE_BYTES, 640 * MIB)
    client.connector.close()
    index = path / "index.kvring"
    os.truncate(index, index.stat().st_size)
    fill_up(directory / "other-file")
    held = client.connector.recovery["kept"]
    caplog.clear()
    client = open_store(path, 2048 * MIB)
    assert "share of the index" in caplog.text
    # A sixty-fourth of the chunks, and no more, went for it.
    assert client.connector.recovery["kept"] > 0.95 * held
    fill(client, "small", SMALL_BYTES, 640 * MIB)
    assert held_part(client) > 0.85, client.connector.stats()
    client.assert_sound()


def test_an_index_that_is_full_is_named(
    tmp_path: Path, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    # What several threads evict at a time may be more than one of them needs.
    client = open_store(tmp_path, 16 * MIB, layout="extents", io_threads=1)
    # Each takes 25 slots of the index, 6400 bytes, and 4096 of a data file.
    keys = [f"{number:04096}" for number in range(2000)]
    for first in range(0, len(keys), 50):
        completion = client.set(keys[first : first + 50], [SOURCE[:4096]] * 50)
        assert completion.ok, completion.error
    held = sum(client.exists(keys))
    assert client.stat("index_full") == client.stat("evicted") == len(keys) - held
    client.connector.close()
    told = [record for record in caplog.records if "the index has no room" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "raise capacity" in told[0].message
