"""File systems that are full for real: fresh ones on loop devices, filled by another file."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli import main
from tests.python.conftest import HANG_DEADLINE_S, KIB, MIB, Client, make_key, pattern
from tests.support.devices import loop_device

pytestmark = pytest.mark.root

# XFS takes no less than 300 MiB. Without blocks for root ext4 fills up for us as for everybody.
IMAGES = {"ext4": (256 * MIB, ("-m", "0", "-b", "4096")), "xfs": (320 * MIB, ())}
CAPACITY_BYTES = 1024 * MIB
CHUNK_BYTES = MIB
BATCH = 8
BLOCK_BYTES = 4096
SOURCE = pattern(CHUNK_BYTES + 64 * KIB, 1)


@pytest.fixture(params=sorted(IMAGES))
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory on a small file system of its own."""
    size_bytes, options = IMAGES[request.param]
    with ExitStack() as stack:
        device = stack.enter_context(loop_device(tmp_path, request.param, size_bytes, *options))
        yield device.directory


@pytest.fixture
def open_store(small_disk: Path) -> Iterator[Callable[..., Client]]:
    """Open the store on the small disk; it is closed at the end, so that it can be unmounted."""
    connectors: list[kvring.Connector] = []

    def build(**options: Any) -> Client:
        connector = kvring.Connector(
            small_disk / "store", CAPACITY_BYTES, **({"lease_s": 0} | options)
        )
        connectors.append(connector)
        return Client(connector)

    yield build
    for connector in connectors:
        connector.close()


def free_bytes(directory: Path) -> int:
    """Return what is free for everybody: what the floor is measured by."""
    answer = os.statvfs(directory)
    return answer.f_bavail * answer.f_frsize


class Filler:
    """The other file that takes the space."""

    def __init__(self, directory: Path) -> None:
        """Make it, empty."""
        self.path = directory / "other-file"
        self._file = self.path.open("wb", buffering=0)

    def add(self, size_bytes: int) -> bool:
        """Take so much more, in one piece; tell whether it was there."""
        descriptor = self._file.fileno()
        try:
            # After a failure it may have got a part: the end is another one then.
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True

    def fill(self) -> None:
        """Take all that is left, to the last block."""
        for step_bytes in (16 * MIB, MIB, 64 * KIB, BLOCK_BYTES):
            while self.add(step_bytes):
                pass

    def remove(self) -> None:
        """Give everything back."""
        self._file.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def filler(small_disk: Path) -> Iterator[Filler]:
    """Yield the other file, with nothing in it."""
    filler = Filler(small_disk)
    yield filler
    filler.remove()


def content_of(number: int) -> memoryview:
    """Return the chunk of a number: another one for each of 65536 numbers."""
    return memoryview(SOURCE)[number % (64 * KIB) :][:CHUNK_BYTES]


def set_batch(client: Client, first: int) -> tuple[list[bool], str]:
    """Store and load a batch of chunks; return which are held now, and the reason if one is not."""
    numbers = range(first, first + BATCH)
    keys = [make_key(number) for number in numbers]
    completion = client.set(keys, [content_of(number) for number in numbers])
    assert completion.ok == all(completion.results)
    assert completion.ok == (completion.error == "")
    for number, key, is_stored in zip(numbers, keys, completion.results, strict=True):
        # It may be evicted ahead of need by now. A file that is not there is a read error.
        assert not is_stored or client.load(key, CHUNK_BYTES) in (None, content_of(number)), number
    assert client.stat("read_errors") == 0
    return completion.results, completion.error


def assert_all_whole(client: Client, count: int) -> set[int]:
    """Load all that is held of `count` chunks; return their numbers."""
    keys = [make_key(number) for number in range(count)]
    held = {number for number, hit in enumerate(client.exists(keys)) if hit}
    whole = set()
    for number in sorted(held):
        loaded = client.load(keys[number], CHUNK_BYTES)
        # The store makes room ahead of need, in the background.
        if loaded is not None:
            assert loaded == content_of(number), number
            whole.add(number)
    return whole


def wait_for_growth(client: Client, first: int) -> int:
    """Store until the store takes more of the disk; return the number after the last chunk."""
    used_bytes = client.stat("used_bytes")
    deadline = time.monotonic() + HANG_DEADLINE_S
    while client.stat("used_bytes") <= used_bytes:
        assert time.monotonic() < deadline, f"it does not grow: {client.connector.stats()}"
        set_batch(client, first)
        first += BATCH
    return first


def test_a_purge_warns_of_no_capacity_that_nobody_has_configured(
    open_store: Callable[..., Client], small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It opens a closed store with a capacity that it makes up, larger than the disk."""
    client = open_store(min_free=0)
    assert "capacity is 1.0 GiB, but the file system has only" in caplog.text
    client.store({make_key(0): pattern(CHUNK_BYTES, 0)})
    client.connector.close()
    caplog.clear()
    assert main(["purge", "--model=test/model", "--yes", str(small_disk / "store")]) == 0
    assert "capacity is" not in caplog.text


@pytest.mark.slow
def test_another_file_fills_the_disk_under_a_store(
    open_store: Callable[..., Client], filler: Filler, small_disk: Path
) -> None:
    client = open_store(min_free=0)
    count = 0
    # It takes the space in the middle of SETs, which are to take all of it.
    is_there_more = True
    while is_there_more:
        numbers = range(count, count + BATCH)
        batches = [
            client.connector.submit_batch_set([make_key(number)], [content_of(number)])
            for number in numbers
        ]
        count += BATCH
        is_there_more = filler.add(11 * MIB)
        assert set(client.wait_codes(batches).values()) <= {None, "no_space"}
    filler.fill()
    assert free_bytes(small_disk) < MIB

    # More than twice what it has room for: all of it goes in, for others.
    used_bytes, evicted = client.stat("used_bytes"), client.stat("evicted")
    for _ in range(2 * used_bytes // (BATCH * CHUNK_BYTES) + 1):
        results, error = set_batch(client, count)
        assert all(results), error
        count += BATCH
    assert client.stat("used_bytes") == used_bytes
    assert client.stat("evicted") > evicted
    held = assert_all_whole(client, count)
    assert count - 1 in held
    removed = sorted(held)[:3]
    assert client.delete([make_key(number) for number in removed]) == [True] * 3
    assert client.exists([make_key(number) for number in removed]) == [False] * 3
    client.assert_sound()

    # A life begins and ends on a full disk.
    held = assert_all_whole(client, count)
    client.connector.close()
    client = open_store(min_free=0)
    assert client.connector.recovery["kept"] == len(held), client.connector.recovery
    assert assert_all_whole(client, count) == held
    results, error = set_batch(client, count)
    assert all(results), error
    count += BATCH

    filler.remove()
    count = wait_for_growth(client, count)
    results, error = set_batch(client, count)
    assert all(results), error
    count += BATCH
    client.assert_sound()
    held = assert_all_whole(client, count)
    client.connector.close()
    client = open_store(min_free=0)
    assert assert_all_whole(client, count) == held
    client.assert_sound()
