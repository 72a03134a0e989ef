"""Closes the plugin adapter amid its work, time and again, and unmaps its memory at once.

The memory is a file of memory that is mapped twice. kvring gets the first mapping, registered or
not, and that is unmapped as soon as close() has returned: a copy into it would end the process. The
second mapping shows what the kernel would still write.
"""

import ctypes
import json
import os
import random
import sys
import time

import torch
from lmcache.v1.distributed.internal_api import L1MemoryDesc

from kvring.lmcache import KvringL2Adapter, KvringL2AdapterConfig

# Run as a file of its own, this finds its neighbours by their bare names.
from adapter_driver import chunks_in, make_key  # type: ignore[import-not-found] # isort: skip

ROUNDS = 50
OPERATIONS = 2000
BATCH_KEYS = 100
# Longer than a chunk, so that kvring's own copies are under way too.
SLOT_BYTES = 16 << 10
CHUNK_BYTES = SLOT_BYTES - 4096
ARENA_BYTES = OPERATIONS * SLOT_BYTES
LATE_TRANSFER_S = 0.01

PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_memory(descriptor: int) -> tuple[int, torch.Tensor]:
    """Map the file of memory; return where it is, and a tensor over it."""
    address = LIBC.mmap(None, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    array = (ctypes.c_ubyte * ARENA_BYTES).from_address(address)
    return address, torch.frombuffer(array, dtype=torch.uint8)


def main() -> None:
    """Do it, and end with status 0 only if nothing was touched too late."""
    options = json.loads(sys.argv[1])["adapter_params"]
    choose = random.Random(1)
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, ARENA_BYTES)
    _, seen = map_memory(descriptor)
    seen.random_(generator=torch.Generator().manual_seed(1))
    abandoned = 0
    for number in range(ROUNDS):
        address, arena = map_memory(descriptor)
        description = L1MemoryDesc(address, ARENA_BYTES, 4096, ARENA_BYTES)
        adapter = KvringL2Adapter(
            KvringL2AdapterConfig.from_dict(options),
            l1_memory_desc=description if number % 2 else None,
        )
        for first in range(0, OPERATIONS, BATCH_KEYS):
            keys = [make_key(choose.randrange(OPERATIONS)) for _ in range(BATCH_KEYS)]
            slots = range(first, first + BATCH_KEYS)
            chunks = chunks_in(arena, SLOT_BYTES, CHUNK_BYTES, slots)
            submit = choose.choice([adapter.submit_load_task, adapter.submit_store_task])
            submit(keys, chunks)
        time.sleep(choose.random() * 0.01)
        # Some of it is done by then, and the rest is dropped.
        abandoned += adapter._store.close(drain_s=0)["abandoned"]
        adapter.close()
        LIBC.munmap(address, ARENA_BYTES)
        at_close = seen.clone()
        time.sleep(LATE_TRANSFER_S)
        assert torch.equal(seen, at_close), f"round {number}: memory was written after close()"
    assert abandoned > 0, "nothing was under way at any close()"
    print("no memory was touched")


if __name__ == "__main__":
    main()
