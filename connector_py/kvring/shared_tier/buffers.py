"""Memory between LMCache's and a shared tier: what a tier does late, it does here."""

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from typing import Any, Final

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

from kvring.lmcache.variants import form_of

__all__ = ["BLOCK_BYTES", "Buffers", "bytes_of", "is_marked", "mark", "object_over"]

BLOCK_BYTES: Final = 4096
_HUGE_PAGE_BYTES: Final = 2 << 20

# At the end of memory that is to be loaded into: who leaves it there has loaded too little. Other
# chunks have these bytes with a probability of 2^-128.
_MARK: Final = os.urandom(16)
_MARK_ADDRESS: Final = ctypes.c_char_p(_MARK)

# What somebody may still read or write, for as long as this process lives.
_abandoned: list[TensorMemoryObj] = []


class Buffers:
    """Memory objects of any length, up to a limit in all. Several threads may use it."""

    def __init__(self, limit_bytes: int) -> None:
        """Have none yet.

        Args:
            limit_bytes: Of all that are taken, and of those that are kept for the next time.
        """
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._kept: dict[int, list[torch.Tensor]] = {}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def take(self, length_bytes: int, like: Any = None) -> TensorMemoryObj | None:
        """Return a memory object of this length, with any content; None if there is no room.

        It has shapes and dtypes of the memory object `like`, or is bytes.
        """
        with self._lock:
            size_bytes = _size_bytes(length_bytes)
            if self.taken_bytes + size_bytes > self.limit_bytes:
                return None
            self.taken_bytes += size_bytes
            kept = self._kept.get(length_bytes)
            if kept:
                self._kept_bytes -= size_bytes
                return object_over(kept.pop(), like)
            # Of other lengths, which nobody may ask for again.
            while self._kept_bytes + self.taken_bytes > self.limit_bytes:
                other = next(length for length, tensors in self._kept.items() if tensors)
                self._kept[other].pop()
                self._kept_bytes -= _size_bytes(other)
        try:
            return object_over(_new_memory(length_bytes), like)
        except (OSError, RuntimeError):
            # The machine has none left.
            with self._lock:
                self.taken_bytes -= _size_bytes(length_bytes)
            return None

    def give_back(self, objects: list[TensorMemoryObj]) -> None:
        """Take memory objects back; nobody uses them any more."""
        with self._lock:
            for one in objects:
                length_bytes = one.raw_data.numel()
                self.taken_bytes -= _size_bytes(length_bytes)
                self._kept_bytes += _size_bytes(length_bytes)
                self._kept.setdefault(length_bytes, []).append(one.raw_data)

    @staticmethod
    def abandon(objects: list[TensorMemoryObj]) -> None:
        """Use memory objects never again: somebody may still write there. They stay taken."""
        _abandoned.extend(objects)


def bytes_of(memory: TensorMemoryObj) -> memoryview:
    """Return what a memory object of a `Buffers` has.

    Its `byte_array` makes a type of ctypes for each length, which stays for good.
    """
    return memoryview(memory.raw_data.numpy())


def mark(memory: TensorMemoryObj) -> None:
    """Note at its end that nothing has been loaded there yet."""
    if memory.get_size() >= BLOCK_BYTES:
        ctypes.memmove(memory.data_ptr + memory.get_size() - len(_MARK), _MARK_ADDRESS, len(_MARK))


def is_marked(memory: TensorMemoryObj) -> bool:
    """Say whether the end is as `mark` left it."""
    if memory.get_size() < BLOCK_BYTES:
        return False
    return ctypes.string_at(memory.data_ptr + memory.get_size() - len(_MARK), len(_MARK)) == _MARK


def _new_memory(length_bytes: int) -> torch.Tensor:
    """Return memory that begins at a whole block, as transfers without a copy need it."""
    if length_bytes < _HUGE_PAGE_BYTES:
        memory = torch.empty(length_bytes + BLOCK_BYTES, dtype=torch.uint8)
        start = -memory.data_ptr() % BLOCK_BYTES
        return memory[start : start + length_bytes]
    # In huge pages, where the system gives some: a drive moves each run of pages for itself.
    mapped = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _size_bytes(length_bytes: int) -> int:
    """Return what a memory object of a length takes, as it begins at a whole block."""
    return length_bytes + BLOCK_BYTES


def object_over(memory: torch.Tensor, like: Any = None) -> TensorMemoryObj:
    """Return a memory object of LMCache over bytes, as they are in memory object `like`."""
    length_bytes = memory.numel()
    shapes, dtypes = [torch.Size([length_bytes])], [torch.uint8]
    if like is not None:
        shapes, dtypes = form_of(like)
    metadata: Any = MemoryObjMetadata(
        shape=shapes[0],
        dtype=dtypes[0],
        shapes=shapes,
        dtypes=dtypes,
        address=0,
        phy_size=length_bytes,
        ref_count=1,
        fmt=MemoryFormat.BINARY,
    )
    return TensorMemoryObj(memory, metadata, None)
