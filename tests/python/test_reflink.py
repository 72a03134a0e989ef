"""Stores whose data files share blocks with a copy, or have holes, on an XFS without the space."""

import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import KIB, MIB, Client, make_key, pattern
from tests.python.test_enospc import Filler, free_bytes
from tests.support.devices import loop_device

pytestmark = pytest.mark.root

IMAGE_BYTES = 640 * MIB
CAPACITY_BYTES = 384 * MIB
CHUNK_BYTES = MIB
BATCH = 8
# All that the store takes is shared, and this much is there for new blocks.
FREE_BYTES = 96 * MIB
# Less than the index has, and more than its first page.
LITTLE_BYTES = 512 * KIB
SOURCE = pattern(CHUNK_BYTES + 64 * KIB, 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory on an XFS of its own whose files can share blocks."""
    with loop_device(tmp_path, "xfs", IMAGE_BYTES, "-m", "reflink=1") as device:
        yield device.directory


@pytest.fixture
def open_store(disk: Path) -> Iterator[Callable[..., Client]]:
    """Open a store on that disk; it is closed at the end, so that it can be unmounted."""
    connectors: list[kvring.Connector] = []

    def build(name: str = "store", **options: Any) -> Client:
        given = {"lease_s": 0, "min_free": 0} | options
        connectors.append(kvring.Connector(disk / name, CAPACITY_BYTES, **given))
        return Client(connectors[-1])

    yield build
    for connector in connectors:
        connector.close()


def content_of(number: int) -> memoryview:
    """Return the chunk of a number: another one for each of 65536 numbers."""
    return memoryview(SOURCE)[number % (64 * KIB) :][:CHUNK_BYTES]


def store(client: Client, numbers: range) -> list[str]:
    """Store chunks, a batch at a time; return why some are not held, without repeating it."""
    errors = []
    for first in range(numbers.start, numbers.stop, BATCH):
        batch = range(first, min(first + BATCH, numbers.stop))
        completion = client.set([make_key(n) for n in batch], [content_of(n) for n in batch])
        if not completion.ok and completion.error not in errors:
            errors.append(completion.error)
    return errors


def held(client: Client, numbers: range) -> set[int]:
    """Load all that is held; return its numbers."""
    keys = {number: make_key(number) for number in numbers}
    whole = set()
    for number, key in keys.items():
        if client.exists([key]) == [True]:
            loaded = client.load(key, CHUNK_BYTES)
            # It may go between the two.
            assert loaded is None or loaded == content_of(number), number
            whole |= {number} if loaded is not None else set()
    return whole


def copy_of(disk: Path, *options: str) -> Path:
    """Copy the store."""
    copy = disk / "copy"
    subprocess.run(["cp", "-a", *options, str(disk / "store"), str(copy)], check=True)
    return copy


def digests(directory: Path) -> dict[str, bytes]:
    """Return what its files hold, by name."""
    files = (path for path in directory.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).digest() for path in files}


def take_all_but(filler: Filler, disk: Path, left_bytes: int) -> None:
    """Leave so much free."""
    while (more_bytes := free_bytes(disk) - left_bytes) > 0:
        assert filler.add(min(16 * MIB, max(more_bytes, 64 * KIB)))


def write_all_of(store_directory: Path) -> None:
    """Write what never was, as a store that is under load leaves some: a copy does not share it."""
    for data_file in store_directory.glob("data-*"):
        content = data_file.read_bytes()
        with data_file.open("r+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def assert_in_use(client: Client) -> None:
    """Look for signs that the device is taken for a failing one."""
    path = client.connector.stats()["paths"][0]
    assert (path["in_use"], path["reason"]) == (True, "")
    assert client.stat("write_errors") == 0
    assert client.stat("index_pages_lost") == 0
    client.assert_sound()


@pytest.fixture
def filled(open_store: Callable[..., Client], disk: Path) -> Iterator[tuple[Client, range, Filler]]:
    """Yield a store with chunks in all of its space, and their numbers."""
    client = open_store()
    count = 2 * CAPACITY_BYTES // CHUNK_BYTES
    assert store(client, range(count)) == []
    client.connector.close()
    write_all_of(disk / "store")
    client = open_store()
    filler = Filler(disk)
    yield client, range(count), filler
    filler.remove()


@pytest.mark.parametrize("while_open", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_store_with_a_copy_lives_within_what_is_free(
    filled: tuple[Client, range, Filler],
    open_store: Callable[..., Client],
    disk: Path,
    caplog: pytest.LogCaptureFixture,
    while_open: bool,
) -> None:
    caplog.set_level(logging.WARNING)
    client, numbers, filler = filled
    full_bytes = client.stat("allocated_bytes")
    if not while_open:
        client.connector.close()
    copy = copy_of(disk, "--reflink=always")
    copied = digests(copy)
    take_all_but(filler, disk, FREE_BYTES)
    if not while_open:
        client = open_store()
        assert client.stat("shared_bytes") > FREE_BYTES
    old = held(client, numbers)
    assert len(old) * CHUNK_BYTES > full_bytes * 3 // 4

    # All of it, twice.
    new = range(numbers.stop, numbers.stop + 2 * full_bytes // CHUNK_BYTES)
    assert store(client, new) == []
    assert_in_use(client)
    assert client.stat("shared_bytes") > FREE_BYTES
    kept = held(client, new)
    assert new[-1] in kept
    # What is free, less what chunks are evicted ahead of need, and what the file system keeps.
    assert len(kept) * CHUNK_BYTES > FREE_BYTES // 2
    # What the others take makes no room when it goes.
    assert len(held(client, numbers)) > len(old) // 2
    text = "".join(record.getMessage() for record in caplog.records)
    assert "remove the copy" in text, text
    assert str(disk / "store") in text, text

    # The copy is what it was, and a store.
    assert digests(copy) == copied
    filler.remove()
    backup = open_store("copy")
    if while_open:
        assert len(held(backup, numbers)) >= len(old) * 3 // 4
    else:
        assert held(backup, numbers) == old
    assert store(backup, range(numbers.stop, numbers.stop + 2 * BATCH)) == []
    assert_in_use(backup)
    backup.connector.close()

    shutil.rmtree(copy)
    client.wait_until(lambda: client.stat("shared_bytes") == 0)
    again = range(new.stop, new.stop + len(numbers))
    assert store(client, again) == []
    assert_in_use(client)
    assert client.stat("allocated_bytes") >= full_bytes * 9 // 10
    assert again[-1] in held(client, again)


@pytest.mark.slow
def test_a_store_all_of_which_is_shared_on_a_full_disk(
    filled: tuple[Client, range, Filler], open_store: Callable[..., Client], disk: Path
) -> None:
    client, numbers, filler = filled
    copy = copy_of(disk, "--reflink=always")
    # From here on the index has blocks of its own.
    client.wait_until(lambda: client.stat("shared_bytes") > 0)
    filler.fill()
    old = held(client, numbers)
    errors = store(client, range(10_000, 10_200))
    assert len(errors) > 0
    assert all("remove the copy" in error for error in errors), errors
    assert_in_use(client)
    assert held(client, numbers) == old, "nothing goes in vain"

    shutil.rmtree(copy)
    client.wait_until(lambda: client.stat("shared_bytes") == 0)
    assert store(client, range(20_000, 20_200)) == []
    # They replace the old ones, at once, and not each other.
    kept = held(client, range(20_000, 20_200))
    assert 20_199 in kept
    assert len(kept) >= 150
    assert_in_use(client)


@pytest.mark.slow
def test_a_store_with_holes(
    filled: tuple[Client, range, Filler], open_store: Callable[..., Client], disk: Path
) -> None:
    """As a sparse copy has them: for what was never written, and for zeros."""
    client, numbers, filler = filled
    client.delete([make_key(number) for number in numbers[: len(numbers) * 7 // 8]])
    old = held(client, numbers)
    client.connector.close()
    for data_file in (disk / "store").glob("data-*"):
        subprocess.run(["fallocate", "--dig-holes", str(data_file)], check=True)
        subprocess.run(
            ["fallocate", "--punch-hole", "--offset", "0", "--length", "8MiB", str(data_file)],
            check=True,
        )
    take_all_but(filler, disk, 8 * MIB)
    client = open_store()
    assert client.stat("shared_bytes") > 0
    assert store(client, range(10_000, 10_000 + 2 * CAPACITY_BYTES // CHUNK_BYTES)) == []
    assert_in_use(client)
    assert held(client, numbers) <= old
    filler.remove()
    client.wait_until(lambda: client.stat("shared_bytes") == 0)
    assert_in_use(client)


@pytest.mark.slow
def test_a_store_that_is_opened_beside_its_copy_where_little_is_free(
    filled: tuple[Client, range, Filler], open_store: Callable[..., Client], disk: Path
) -> None:
    """Not even the index can have blocks of its own."""
    client, numbers, filler = filled
    old = held(client, numbers)
    client.connector.close()
    copy = copy_of(disk, "--reflink=always")
    take_all_but(filler, disk, LITTLE_BYTES)
    client = open_store()
    assert held(client, numbers) == old
    errors = store(client, range(10_000, 10_016))
    assert len(errors) > 0
    assert all("remove the copy" in error for error in errors), errors
    assert_in_use(client)
    shutil.rmtree(copy)
    client.wait_until(lambda: store(client, range(20_000, 20_008)) == [])
    client.wait_until(lambda: client.stat("shared_bytes") == 0)
    assert_in_use(client)
