"""The memory that is stored and loaded: page-aligned, like LMCache's L1."""

from __future__ import annotations

import ctypes
import mmap
import random

_FILL_SIZE_BYTES = 1 << 20
_PAGE_SIZE_BYTES = 4096


class Arena:
    """Two equal halves of anonymous memory: random bytes to store, and room to load them into.

    In a same-filled arena each page repeats one random word, which zram keeps without storing it.
    """

    def __init__(
        self, half_size_bytes: int, *, huge_pages: bool, same_filled: bool = False, seed: int = 1
    ) -> None:
        """Map the memory, and touch every page, so that no timed part pays for a page fault."""
        self._half_size_bytes = half_size_bytes
        self._memory = mmap.mmap(
            -1, 2 * half_size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        if huge_pages:
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.same_filled = same_filled
        generator = random.Random(seed)
        for offset in range(0, half_size_bytes, _FILL_SIZE_BYTES):
            size_bytes = min(_FILL_SIZE_BYTES, half_size_bytes - offset)
            self._memory[offset : offset + size_bytes] = _filling(
                generator, size_bytes, same_filled=same_filled
            )
        self.clear_loaded(half_size_bytes)

    @property
    def address(self) -> int:
        """Where it begins."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @property
    def size_bytes(self) -> int:
        """Both halves."""
        return 2 * self._half_size_bytes

    def to_store(self, chunk_size_bytes: int, chunk_count: int) -> list[memoryview]:
        """Return the chunks to store."""
        return self._chunks(0, chunk_size_bytes, chunk_count)

    def to_load(self, chunk_size_bytes: int, chunk_count: int) -> list[memoryview]:
        """Return the places to load them into."""
        return self._chunks(self._half_size_bytes, chunk_size_bytes, chunk_count)

    def clear_loaded(self, size_bytes: int) -> None:
        """Wipe what was loaded, so that the next load can't pass with the bytes of this one."""
        zeros = bytes(_FILL_SIZE_BYTES)
        start = self._half_size_bytes
        for offset in range(start, start + size_bytes, _FILL_SIZE_BYTES):
            end = min(offset + _FILL_SIZE_BYTES, start + size_bytes)
            self._memory[offset:end] = zeros[: end - offset]

    def differing_chunks(self, chunk_size_bytes: int, chunk_count: int) -> list[int]:
        """Return the numbers of the loaded chunks that are not what was stored."""
        different = []
        for chunk in range(chunk_count):
            stored_at = chunk * chunk_size_bytes
            loaded_at = self._half_size_bytes + stored_at
            stored = self._memory[stored_at : stored_at + chunk_size_bytes]
            if stored != self._memory[loaded_at : loaded_at + chunk_size_bytes]:
                different.append(chunk)
        return different

    def _chunks(self, start: int, chunk_size_bytes: int, chunk_count: int) -> list[memoryview]:
        whole = memoryview(self._memory)
        offsets = range(start, start + chunk_count * chunk_size_bytes, chunk_size_bytes)
        return [whole[offset : offset + chunk_size_bytes] for offset in offsets]


def _filling(generator: random.Random, size_bytes: int, *, same_filled: bool) -> bytes:
    if not same_filled:
        return generator.randbytes(size_bytes)
    words = (generator.randbytes(8) for _ in range(-(-size_bytes // _PAGE_SIZE_BYTES)))
    return b"".join(word * (_PAGE_SIZE_BYTES // 8) for word in words)[:size_bytes]
