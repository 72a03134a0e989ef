"""Closes a connector in the midst of its work, then takes away the memory it worked on."""

import ctypes
import json
import mmap
import sys
import time

import torch

# Run as a file of its own, this finds its neighbours by their bare names.
from adapter_driver import AdapterDriver, make_key  # type: ignore[import-not-found]
from lmcache.v1.memory_management import (
    MemoryFormat,
    MemoryObj,
    MemoryObjMetadata,
    TensorMemoryObj,
)

CHUNK_BYTES = 2 << 20
CHUNK_COUNT = 64
# Every other chunk starts at an odd address, so that kvring's copies through its own blocks are
# under way too.
SLOT_BYTES = CHUNK_BYTES + 4096
LATE_TRANSFER_S = 0.5
PROT_NONE = 0


def chunks_in(arena: torch.Tensor, first_slot: int) -> list[MemoryObj]:
    """Lay one run of chunks out in ``arena``, from its slot ``first_slot`` on."""
    chunks: list[MemoryObj] = []
    for slot in range(first_slot, first_slot + CHUNK_COUNT):
        start = slot * SLOT_BYTES + slot % 2
        metadata = MemoryObjMetadata(
            shape=torch.Size([CHUNK_BYTES]),
            dtype=torch.uint8,
            address=start,
            phy_size=CHUNK_BYTES,
            fmt=MemoryFormat.KV_2LTD,
            ref_count=1,
        )
        raw_data = arena[start : start + CHUNK_BYTES]
        chunks.append(TensorMemoryObj(raw_data, metadata, parent_allocator=None))
    return chunks


def main() -> None:
    """Do it, and end with status 0 only if nothing was touched too late."""
    driver = AdapterDriver(json.loads(sys.argv[1]))
    memory = mmap.mmap(-1, 3 * CHUNK_COUNT * SLOT_BYTES, flags=mmap.MAP_PRIVATE)
    arena = torch.frombuffer(memory, dtype=torch.uint8)
    arena.random_(generator=torch.Generator().manual_seed(1))
    stored_keys = [make_key(number) for number in range(CHUNK_COUNT)]
    stored = chunks_in(arena, 0)
    assert driver.store(stored_keys, [bytes(chunk.byte_array) for chunk in stored])

    adapter = driver.adapter
    adapter.submit_load_task(stored_keys, chunks_in(arena, CHUNK_COUNT))
    new_keys = [make_key(number) for number in range(CHUNK_COUNT, 2 * CHUNK_COUNT)]
    adapter.submit_store_task(new_keys, chunks_in(arena, 2 * CHUNK_COUNT))
    # adapter.close() first waits for its own thread, by which time the work would be done.
    connector = adapter._client if hasattr(adapter, "_client") else adapter._store
    connector.close()
    at_close = arena.clone()
    time.sleep(LATE_TRANSFER_S)
    assert torch.equal(arena, at_close), "a load went on after close() had returned"

    address, size_bytes = arena.data_ptr(), len(memory)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    time.sleep(LATE_TRANSFER_S)
    driver.close()
    print("no buffer was touched")


if __name__ == "__main__":
    main()
