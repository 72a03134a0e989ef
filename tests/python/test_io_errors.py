"""Errors of the device, of reads, writes and syncs: what it costs, and that it costs no more.

The device is real to kvring: a loop device, whose transfers qemu's blkdebug refuses below it.
"""

import errno
import fcntl
import hashlib
import os
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from ctypes import CDLL, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring._native import StoredChunks
from tests.python.conftest import BLOCK_BYTES, KIB, MIB, Client, make_key, make_memory, pattern
from tests.python.faulty_device import FaultyDevice, Kind, faulty_device
from tests.support.block_devices import mount, temporary_directory

pytestmark = pytest.mark.root

SIZE_BYTES = 256 * MIB
CAPACITY_BYTES = 128 * MIB
CHUNK_BYTES = 64 * KIB + 100
KEYS = [make_key(number) for number in range(12)]
CHUNKS = {key: pattern(CHUNK_BYTES, number) for number, key in enumerate(KEYS)}
BAD = KEYS[5]
GOOD = [key for key in KEYS if key != BAD]
# Without a journal, which an error would end; with the blocks of a larger file system.
MAKE_EXT4 = ("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", "-E", "nodiscard")
# ioctl_fibmap(2): the block of the device that a block of a file is in.
FIBMAP = 1
# madvise(2)
MADV_DONTNEED = 4
LIBC = CDLL(None, use_errno=True)
# Of the superblock, docs/explanation/format.md.
INDEX_OFFSET_FIELD = 48


class Place:
    """Where a store is, on a device that can fail, and what is where on that device."""

    def __init__(self, device: FaultyDevice, path: Path, options: dict[str, Any]) -> None:
        """Note it."""
        self.device = device
        self.path = path
        self.options = options
        self.is_device = path == device.path
        self.connectors: list[kvring.Connector] = []

    def open(self, **options: Any) -> Client:
        """Open the store; it is closed at the end of the test."""
        connector = kvring.Connector(
            self.path, CAPACITY_BYTES, min_free=0, **self.options, **options
        )
        self.connectors.append(connector)
        return Client(connector)

    def fail_chunks(self, kind: Kind, *keys: str, error: int = errno.EIO) -> None:
        """Let the middle of each chunk's place fail."""
        chunks = [chunk for chunk in StoredChunks(self.path, None) if chunk["key"] in keys]
        assert len(chunks) == len(keys)
        self.device.fail(kind, *map(self._middle, chunks), error=error)

    def _middle(self, chunk: dict[str, Any]) -> int:
        offset = chunk.get("offset_bytes", 0) + chunk["length_bytes"] // 2
        return self._on_device(self.path / chunk["file"], offset)

    def index_offset(self, page: int) -> int:
        """Return where on the device a page of the index is."""
        if not self.is_device:
            return self._on_device(self.path / "index.kvring", page * BLOCK_BYTES)
        with self.path.open("rb") as device:
            superblock = device.read(BLOCK_BYTES)
        (begin,) = struct.unpack_from("<Q", superblock, INDEX_OFFSET_FIELD)
        return int(begin) + page * BLOCK_BYTES

    def forget_index(self) -> None:
        """Have all of the index read from the device again, also where it is mapped."""
        path = self.path if self.is_device else self.path / "index.kvring"
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            span, *_, mapped = line.split(maxsplit=5)
            if mapped == str(path):
                begin, end = (int(address, 16) for address in span.split("-"))
                # Of a shared mapping it takes the page tables only.
                assert LIBC.madvise(c_void_p(begin), c_size_t(end - begin), MADV_DONTNEED) == 0
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)

    def _on_device(self, file: Path, offset: int) -> int:
        if self.is_device:
            return offset
        with file.open("rb") as descriptor:
            block = fcntl.ioctl(descriptor, FIBMAP, struct.pack("i", offset // BLOCK_BYTES))
        (number,) = struct.unpack("i", block)
        assert number, f"there is nothing at {offset} of {file}"
        return int(number) * BLOCK_BYTES + offset % BLOCK_BYTES


PLACES = [
    ("device", "io_uring"),
    ("extents", "io_uring"),
    ("extents", "posix"),
    ("files", "io_uring"),
]


@pytest.fixture(params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield a bare device, a directory on ext4 in layout `extents`, one in layout `files`."""
    kind, engine = request.param
    try:
        kvring.Connector(tmp_path / "probe", 32 * MIB, engine=engine).close()
    except kvring.EngineError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        device = stack.enter_context(faulty_device(tmp_path, SIZE_BYTES))
        options: dict[str, Any] = {"engine": engine}
        path = device.path
        if kind != "device":
            options["layout"] = kind
            mount_point = temporary_directory(stack, tmp_path)
            path = mount(stack, MAKE_EXT4, device.path, mount_point) / "store"
        place = Place(device, path, options)
        try:
            yield place
        finally:
            device.mend()
            for connector in place.connectors:
                connector.close()


def assert_names(place: Place, text: str, keys: list[str], error: int = errno.EIO) -> None:
    """Expect that a failure names the store, the digest of one of the keys, its file and errno."""
    assert f" of {place.path})" in text
    assert f"{os.strerror(error)} (os error {error})" in text
    found = re.search(r"digest ([0-9a-f]{32}), ", text)
    assert found, text
    digests = [hashlib.blake2b(key.encode(), digest_size=16).hexdigest() for key in keys]
    digest = found.group(1)
    assert digest in digests
    file = {
        "files": rf"file chunks/{digest[:2]}/{digest}-\d+ of ",
        "extents": r"byte \d+ of data-\d{5}\.kvring of ",
    }
    assert re.search(file.get(place.options.get("layout", ""), r"byte \d+ of "), text), text


def get_all(client: Client, keys: list[str]) -> list[bool]:
    """Load chunks as one batch; what is found must be right."""
    memory = [make_memory(CHUNK_BYTES) for _ in keys]
    completion = client.get(keys, memory)
    assert (completion.ok, completion.error) == (True, "")
    for key, block, hit in zip(keys, memory, completion.results, strict=True):
        assert not hit or block == CHUNKS[key], "wrong bytes"
    return completion.results


# A medium error of an NVMe drive is ENODATA.
ONE_SECTOR = pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA], ids=["EIO", "ENODATA"])


@ONE_SECTOR
def test_a_chunk_that_cannot_be_read_is_missed_alone(
    place: Place, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = place.open()
    client.store(CHUNKS)
    place.fail_chunks("read", BAD, error=error)
    assert get_all(client, KEYS) == [key != BAD for key in KEYS]
    assert client.stat("read_errors") == 1
    line = next(line for line in caplog.messages if "cannot read a chunk" in line)
    assert_names(place, line, [BAD], error)
    # Others can be read, so it is not the device: at the latest an idle moment tells.
    assert get_all(client, GOOD) == [True] * len(GOOD)
    client.wait_until(lambda: client.stat("read_dropped") == 1)
    assert client.exists(KEYS) == [key != BAD for key in KEYS]
    assert get_all(client, KEYS) == [key != BAD for key in KEYS]
    assert client.stat("read_errors") == 1
    client.assert_sound()
    place.device.mend()
    client.store({BAD: CHUNKS[BAD]})
    assert get_all(client, KEYS) == [True] * len(KEYS)
    assert client.connector.close()["shutdown_clean"]
    assert get_all(place.open(), KEYS) == [True] * len(KEYS)


def test_a_group_that_cannot_be_synced_fails(place: Place) -> None:
    client = place.open(durability="persistent")
    client.store({key: CHUNKS[key] for key in GOOD})
    place.device.fail("flush")
    futures = [
        client.connector.submit_batch_set([BAD, f"{BAD}@{number}"], [CHUNKS[BAD], b"other"])
        for number in range(8)
    ]
    for completion in client.wait_all(futures):
        assert (completion.ok, completion.results) == (False, [False, False])
        assert completion.error.startswith("cannot make a chunk (")
        assert_names(place, completion.error, [BAD, *(f"{BAD}@{number}" for number in range(8))])
    assert client.stat("sync_errors") > 0
    assert get_all(client, KEYS) == [key != BAD for key in KEYS]
    place.device.mend()
    client.store({BAD: CHUNKS[BAD]})
    assert get_all(client, KEYS) == [True] * len(KEYS)
    client.assert_sound()
    assert client.connector.close()["shutdown_clean"]
    again = place.open()
    assert get_all(again, KEYS) == [True] * len(KEYS)
    assert again.exists([f"{BAD}@{number}" for number in range(8)]) == [False] * 8


# 16 records in each page of the index.
MANY = {make_key(number): pattern(100 + number, number) for number in range(1200)}
BAD_PAGE = 50


def held(client: Client) -> int:
    """Count what is there of MANY; it must be right."""
    found = {key: client.load(key, len(content)) for key, content in MANY.items()}
    assert all(content in (None, MANY[key]) for key, content in found.items())
    assert client.exists(list(MANY)) == [content is not None for content in found.values()]
    return sum(content is not None for content in found.values())


def test_an_index_that_cannot_be_read_while_it_is_open(place: Place) -> None:
    client = place.open()
    client.store(MANY)
    client.connector.close()
    client = place.open()
    bad = place.index_offset(BAD_PAGE)
    place.forget_index()
    place.device.fail("read", bad)
    count = held(client)
    lost_pages = client.stat("index_pages_lost")
    assert lost_pages > 0
    assert len(MANY) - 16 * lost_pages <= count < len(MANY)
    client.store(MANY)
    assert held(client) == len(MANY)
    place.device.mend()
    client.connector.close()
    assert held(place.open()) == len(MANY)
