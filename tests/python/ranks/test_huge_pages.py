"""Memory of segments lies in huge pages, where the kernel has some."""

import ctypes
import errno
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring._native import put_into_huge_pages
from kvring.ranks import Reader
from tests.python.conftest import MIB
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, Owner, content_of
from tests.python.ranks.readers import load

LENGTH_BYTES = 4 * MIB
HUGE_PAGE_BYTES = 2 * MIB
MAP_FIXED = 0x10
# Linux before 6.1, and one that has no huge page now or cannot move what is there.
NO_HUGE_PAGES = (errno.EINVAL, errno.ENOMEM, errno.EAGAIN, errno.EBUSY)
CODE = re.compile(r"\(os error (\d+)\)$")


@pytest.fixture
def memory() -> Iterator[int]:
    """A file of memory that has a page already, and no other."""
    descriptor = os.memfd_create("the test", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, LENGTH_BYTES)
    os.pwrite(descriptor, content_of("memory", 0, 5000), MIB)
    yield descriptor
    os.close(descriptor)


def assert_as_before(memory: int) -> None:
    content = bytearray(LENGTH_BYTES)
    content[MIB : MIB + 5000] = content_of("memory", 0, 5000)
    assert os.pread(memory, LENGTH_BYTES + 1, 0) == content


def test_a_file_of_memory_has_all_of_it_and_keeps_what_is_in_it(memory: int) -> None:
    assert os.fstat(memory).st_blocks * 512 < LENGTH_BYTES
    for _ in range(2):
        # Memory is taken where there are no huge pages, too.
        with suppress(OSError):
            put_into_huge_pages(memory, LENGTH_BYTES)
        assert os.fstat(memory).st_blocks * 512 >= LENGTH_BYTES
        assert_as_before(memory)
    assert os.fstat(memory).st_size == LENGTH_BYTES


def test_a_file_of_memory_lies_in_huge_pages(memory: int) -> None:
    try:
        put_into_huge_pages(memory, LENGTH_BYTES)
    except OSError as error:
        code = CODE.search(str(error))
        if code is not None and int(code[1]) in NO_HUGE_PAGES:
            pytest.skip(f"the kernel has no huge pages: {error}")
        raise
    assert huge_kib(memory) == LENGTH_BYTES >> 10
    assert_as_before(memory)


def huge_kib(memory: int) -> int:
    """Map a file where huge pages can be, and return how much of it lies in some."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    all_bytes = LENGTH_BYTES + HUGE_PAGE_BYTES
    anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, all_bytes, 0, anywhere, -1, 0)
    try:
        address = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        flags = mmap.MAP_SHARED | MAP_FIXED
        assert libc.mmap(address, LENGTH_BYTES, mmap.PROT_READ, flags, memory, 0) == address
        # The kernel maps what is touched.
        ctypes.string_at(address, LENGTH_BYTES)
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
        entry = smaps.split(f"\n{address:x}-")[1].split("VmFlags:")[0]
        found = re.search(r"^ShmemPmdMapped: +(\d+) kB$", entry, re.M)
        assert found is not None, entry
        return int(found[1])
    finally:
        libc.munmap(start, all_bytes)


def test_what_is_no_file_of_memory_is_refused(memory: int) -> None:
    closed = os.dup(memory)
    os.close(closed)
    for descriptor in (closed, -1, -(1 << 31)):
        with pytest.raises(OSError, match=rf"\(os error {errno.EBADF}\)$"):
            put_into_huge_pages(descriptor, LENGTH_BYTES)
    with pytest.raises(ValueError, match="zero"):
        put_into_huge_pages(memory, 0)
    assert_as_before(memory)


@FEW_SEGMENTS
def test_an_owner_without_huge_pages_serves_all_the_same(
    store_directory: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def refuse(descriptor: int, length_bytes: int) -> None:
        asked.append((os.fstat(descriptor).st_size, length_bytes))
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr("kvring.ranks.server.put_into_huge_pages", refuse)
    owner = Owner(store_directory)
    ((size_bytes, length_bytes),) = asked
    assert size_bytes == length_bytes
    owner.put(KEYS[:6], [20_000])
    assert load(reader, KEYS[:6], [20_000]) == [True] * 6
    owner.close()
