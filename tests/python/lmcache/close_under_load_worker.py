"""Closes a connector in the midst of its work, then takes away the memory it worked on."""

import ctypes
import json
import mmap
import sys
import time
from typing import Any

import torch

# Run as a file of its own, this finds its neighbours by their bare names.
from adapter_driver import AdapterDriver, chunks_in, make_key  # type: ignore[import-not-found]

CHUNK_BYTES = 2 << 20
CHUNK_COUNT = 64
# Longer than a chunk, so that kvring's copies through its own blocks are under way too.
SLOT_BYTES = CHUNK_BYTES + 4096
LATE_TRANSFER_S = 0.5
PROT_NONE = 0


def slots_from(arena: torch.Tensor, first: int) -> Any:
    """Return one run of chunks."""
    return chunks_in(arena, SLOT_BYTES, CHUNK_BYTES, range(first, first + CHUNK_COUNT))


def main() -> None:
    """Do it, and end with status 0 only if nothing was touched too late."""
    driver = AdapterDriver(json.loads(sys.argv[1]))
    memory = mmap.mmap(-1, 3 * CHUNK_COUNT * SLOT_BYTES, flags=mmap.MAP_PRIVATE)
    arena = torch.frombuffer(memory, dtype=torch.uint8)
    arena.random_(generator=torch.Generator().manual_seed(1))
    stored_keys = [make_key(number) for number in range(CHUNK_COUNT)]
    stored = slots_from(arena, 0)
    assert driver.store(stored_keys, [bytes(chunk.byte_array) for chunk in stored])

    adapter = driver.adapter
    adapter.submit_load_task(stored_keys, slots_from(arena, CHUNK_COUNT))
    new_keys = [make_key(number) for number in range(CHUNK_COUNT, 2 * CHUNK_COUNT)]
    adapter.submit_store_task(new_keys, slots_from(arena, 2 * CHUNK_COUNT))
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
    print("no memory was touched")


if __name__ == "__main__":
    main()
