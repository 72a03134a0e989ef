"""How fast one core here reads memory: no checksum can cost less than that."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

from benches.compare.samples import CPU, RATE

MEMORY_READ = "memory read"
ONE_CORE = "one core"
PROCESSORS = "processor_count"

# More than any cache holds of it.
_SIZE_BYTES = 256 << 20
_ABSENT = 1
NOTE = (
    "One core reads memory: memchr of the C library looks through 256 MiB, more than the cache "
    "holds, for a byte that is not there. It takes its turn in each round, as the others do."
)


class MemoryReader:
    """Memory that is all zeros, and written once, so that each page of it exists."""

    def __init__(self, size_bytes: int = _SIZE_BYTES) -> None:
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.write(bytes(size_bytes))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._memchr = ctypes.CDLL(None).memchr
        self._memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._memchr.restype = ctypes.c_void_p

    def measure(self) -> dict[str, float]:
        """Read all of it once, on one core."""
        size_bytes = len(self._memory)
        cpu_before_s, started_s = time.thread_time(), time.perf_counter()
        found = self._memchr(self._address, _ABSENT, size_bytes)
        elapsed_s, cpu_s = time.perf_counter() - started_s, time.thread_time() - cpu_before_s
        if found is not None:
            raise RuntimeError("the memory to read has changed")
        return {
            RATE: size_bytes / 1e6 / elapsed_s,
            CPU: cpu_s / (size_bytes / 1e9),
            PROCESSORS: float(len(os.sched_getaffinity(0))),
        }
