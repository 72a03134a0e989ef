"""Segments of memory that an owner and its readers share: how many, how long, what lies where."""

import mmap
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

# What a reader asks an owner's socket for.
REQUEST: Final = "share reads"

SEGMENTS: Final = 8
SEGMENT_BYTES: Final = 32 << 20
_BLOCK_BYTES: Final = 4096

# Of an answer; a load is answered when the drive is done with it.
ANSWER_DEADLINE_S: Final = 60.0


def address_of(memory: mmap.mmap) -> int:
    """Return where mapped memory begins."""
    address: int = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    return address


def taken_bytes(lengths_bytes: Sequence[int]) -> int:
    """Return what parts take of a segment: whole blocks. A key that takes more is not read."""
    return sum(-(-length_bytes // _BLOCK_BYTES) * _BLOCK_BYTES for length_bytes in lengths_bytes)


def offsets_of(lengths_bytes: Sequence[int]) -> list[int]:
    """Return where in a segment each part lies, in whole blocks."""
    offsets, end = [], 0
    for length_bytes in lengths_bytes:
        offsets.append(end)
        end += taken_bytes([length_bytes])
    return offsets


def pieces_of(lengths_bytes: list[int], parts: int) -> Iterator[tuple[int, int]]:
    """Split keys into runs that a segment holds, each as long as can be; leave out longer keys."""
    first = size_bytes = 0
    count = len(lengths_bytes) // parts
    for key in range(count):
        own_bytes = taken_bytes(lengths_bytes[key * parts : (key + 1) * parts])
        if size_bytes + own_bytes > SEGMENT_BYTES:
            if first < key:
                yield first, key
            first, size_bytes = key, 0
        if own_bytes > SEGMENT_BYTES:
            first = key + 1
        else:
            size_bytes += own_bytes
    if first < count:
        yield first, count
