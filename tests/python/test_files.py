"""Layout `files`: what it takes on real file systems, and its limit of open files."""

import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    KIB,
    MIB,
    Client,
    make_key,
    pattern,
    run_child,
)
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


def test_a_file_system_below_min_free_costs_one_chunk_for_each_that_comes(
    store_directory: Path,
) -> None:
    """What others take is not made good by chunks: the space of those that go would be theirs."""
    options: dict[str, Any] = {"layout": "files", "lease_s": 0}
    content = pattern(100 * KIB, 1)
    with kvring.Connector(store_directory, CAPACITY_BYTES, min_free=0, **options) as connector:
        Client(connector).store({make_key(number): content for number in range(100)})
    answer = os.statvfs(store_directory)
    floor_bytes = answer.f_bavail * answer.f_frsize + 8 * 1024 * MIB
    with kvring.Connector(
        store_directory, CAPACITY_BYTES, min_free=floor_bytes, **options
    ) as connector:
        client = Client(connector)
        for number in range(100, 150):
            assert client.set([make_key(number)], [content]).ok
        assert client.stat("evicted") == 50
        client.assert_sound()


def use_few_descriptors(directory: str) -> None:
    """A process that may not have more: all is stored and loaded, some of it again."""
    hard = 400
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    with kvring.Connector(directory, 64 * MIB, layout="files", lease_s=0) as connector:
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        client = Client(connector)
        keys = [make_key(number) for number in range(600)]
        content = pattern(4 * KIB, 1)
        others = [os.open("/dev/null", os.O_RDONLY) for _ in range(60)]
        for _ in range(100):
            missing = [key for key, hit in zip(keys, client.exists(keys), strict=True) if not hit]
            if missing:
                client.set(missing, [content] * len(missing))
        assert client.exists(keys) == [True] * len(keys)
        memory = [memoryview(bytearray(len(content))) for _ in keys]
        client.get(keys, memory)
        assert client.exists(keys) == [True] * len(keys), "what could not be opened is kept"
        for one in others:
            os.close(one)
        assert all(client.load(key, len(content)) == content for key in keys)
        client.assert_sound()


def test_few_descriptors_cost_misses_and_no_chunk(store_directory: Path) -> None:
    ended = run_child(use_few_descriptors, str(store_directory))
    assert ended.returncode == 0, ended.stderr


def test_another_layout_is_refused(open_client: Callable[..., Client]) -> None:
    open_client(layout="files").connector.close()
    with pytest.raises(kvring.ConfigError, match="open it with layout: 'files', or choose another"):
        open_client(layout="extents")
