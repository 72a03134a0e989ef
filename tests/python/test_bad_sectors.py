"""Sectors below the index that return EIO: the store opens, and misses what they held."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import MIB, Client, pattern, until
from tests.support.devices import loop_device

CAPACITY_BYTES = 128 * MIB
IMAGE_SIZE_BYTES = 512 * MIB
BLOCK_BYTES = 4096
KEYS = [f"model@00000000@0@{number:064x}" for number in range(400)]
# The header, and the records of 160 keys.
READABLE_BLOCKS = 11


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on its own file system, without the journal: that lies in the middle."""
    with ExitStack() as stack:
        device = stack.enter_context(
            loop_device(tmp_path, "ext4", IMAGE_SIZE_BYTES, "-O", "^has_journal")
        )
        yield device.directory


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unmount(mount_point: Path) -> None:
    """Unmount, as soon as the kernel has let go of the ring that was closed just now."""
    command = ["umount", str(mount_point)]
    until(
        "the unmount",
        lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
    )


def physical_blocks(device: str, name: str) -> list[int]:
    return [int(block) for block in run("debugfs", "-R", f"blocks {name}", device).split()]


def test_a_store_with_bad_sectors_below_its_index_opens(directory: Path) -> None:
    store = directory / "store"
    chunks = {key: pattern(BLOCK_BYTES, number) for number, key in enumerate(KEYS)}
    with kvring.Connector(store, CAPACITY_BYTES) as connector:
        Client(connector).store(chunks)
    del connector
    # The file system put the header behind the records; a copy lies on the disk in order.
    index = store / "index.kvring"
    shutil.copyfile(index, store / "copy")
    (store / "copy").rename(index)

    mount_point = directory.parent
    image = next(mount_point.parent.glob("*.image"))
    device = run("findmnt", "--noheadings", "--output", "SOURCE", str(mount_point)).strip()
    unmount(mount_point)
    inside = Path("/") / store.relative_to(mount_point)
    index_blocks = physical_blocks(device, f"{inside}/index.kvring")
    data_blocks = physical_blocks(device, f"{inside}/data-00000.kvring")
    bad = index_blocks[READABLE_BLOCKS]
    assert index_blocks == sorted(index_blocks), "the readable part would not be the first one"
    # A loop device answers EIO behind the end of its file.
    size_bytes = image.stat().st_size
    with image.open("r+b") as file:
        file.truncate(bad * BLOCK_BYTES)
    run("mount", device, str(mount_point))

    with kvring.Connector(store, CAPACITY_BYTES) as connector:
        client = Client(connector)
        assert connector.recovery["unreadable_pages"] > 0, connector.recovery
        # The kernel reads several blocks at a time: good neighbours of a bad one are missed too.
        kept = connector.recovery["kept"]
        assert 0 < kept <= 16 * (READABLE_BLOCKS - 1)
        assert client.exists(KEYS) == [number < kept for number in range(len(KEYS))]
        data_is_readable = data_blocks[0] < bad
        for key, content in list(chunks.items())[:10]:
            assert client.load(key, BLOCK_BYTES) == (content if data_is_readable else None)
    # Give the space back that the file system believes in, so that it can be unmounted.
    with image.open("r+b") as file:
        file.truncate(size_bytes)
