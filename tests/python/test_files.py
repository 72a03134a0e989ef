"""Layout `files`: what it takes on real file systems, and its limit of open files."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_key, pattern
from tests.support.devices import loop_device
from tests.support.disk_usage import disk_bytes, most_disk_bytes

CAPACITY_BYTES = 48 * MIB
# ext4 would take blocks of 1 KiB on so small a device; XFS takes no less.
IMAGES = {"ext4": (256 * MIB, ("-b", "4096")), "xfs": (320 * MIB, ())}


@pytest.fixture(params=sorted(IMAGES))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory on a file system of its own."""
    with ExitStack() as stack:
        size_bytes, options = IMAGES[request.param]
        device = stack.enter_context(loop_device(tmp_path, request.param, size_bytes, *options))
        yield device.directory


SIZES_BYTES = (1, 100, 4096)


def churn(client: Client, seed: int, total_bytes: int) -> None:
    """Store and delete chunks until so many bytes were written."""
    chance = random.Random(seed)
    content = memoryview(pattern(max(SIZES_BYTES), seed))
    written = 0
    while written < total_bytes:
        sizes = [chance.choice(SIZES_BYTES) for _ in range(64)]
        keys = [make_key(chance.getrandbits(64)) for _ in sizes]
        completion = client.set(keys, [content[:size] for size in sizes])
        assert completion.ok, completion.error
        client.delete(chance.sample(keys, 16))
        written += sum(max(size, 4096) for size in sizes)


@pytest.mark.root
@pytest.mark.slow
def test_what_small_files_take_stays_within_the_capacity(disk: Path) -> None:
    """Blocks of files and directories, over four times the capacity, two lives."""
    directory = disk / "store"
    directory.mkdir()
    options: dict[str, Any] = {"layout": "files", "lease_s": 0, "min_free": 0}
    with most_disk_bytes(directory) as most:
        for life in range(2):
            with kvring.Connector(directory, CAPACITY_BYTES, **options) as connector:
                client = Client(connector)
                churn(client, life, 2 * CAPACITY_BYTES)
                client.assert_sound()
                assert client.stat("evicted") > 0
                assert disk_bytes(directory) <= client.stat("used_bytes") <= CAPACITY_BYTES
    assert CAPACITY_BYTES // 2 < most[0] <= CAPACITY_BYTES
