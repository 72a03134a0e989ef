"""A store whose files share their blocks with a copy, on an XFS without the space for others."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_key
from tests.python.test_enospc import BATCH, CHUNK_BYTES, Filler, content_of
from tests.support.devices import loop_device

pytestmark = pytest.mark.root

IMAGE_BYTES = 640 * MIB
CAPACITY_BYTES = 384 * MIB


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


def copy_of(disk: Path) -> Path:
    """Copy the store, so that both have the same blocks of chunks.

    With the same blocks of the index, too, it depends on the blocks that XFS keeps in reserve
    whether the index takes the records of SETs that fail.
    """
    copy = disk / "copy"
    subprocess.run(["cp", "-a", "--reflink=always", str(disk / "store"), str(copy)], check=True)
    index = disk / "store" / "index.kvring"
    subprocess.run(["cp", "--reflink=never", str(index), str(copy)], check=True)
    return copy


def digests(directory: Path) -> dict[str, bytes]:
    """Return what its files hold, by name."""
    files = (path for path in directory.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).digest() for path in files}


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


def test_a_copy_of_a_live_store_costs_sets_and_no_byte(
    filled: tuple[Client, range, Filler], disk: Path
) -> None:
    client, numbers, filler = filled
    copy = copy_of(disk)
    copied = digests(copy)
    filler.fill()
    old = held(client, numbers)
    assert len(old) >= CAPACITY_BYTES // CHUNK_BYTES // 2

    errors = store(client, range(10_000, 10_000 + 4 * BATCH))
    assert len(errors) > 0
    assert all("space" in error for error in errors), errors
    assert held(client, numbers) <= old
    assert held(client, range(10_000, 10_000 + 4 * BATCH)) == set()
    assert_in_use(client)
    assert digests(copy) == copied

    # Extents that were refused come back, and what is stored now is whole.
    shutil.rmtree(copy)
    filler.remove()
    client.wait_until(lambda: store(client, range(20_000, 20_000 + BATCH)) == [])
    assert store(client, range(30_000, 30_200)) == []
    assert held(client, range(30_000, 30_200)) >= set(range(30_150, 30_200))
    assert_in_use(client)
