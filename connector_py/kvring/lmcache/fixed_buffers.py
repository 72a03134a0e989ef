"""LMCache's L1 memory as fixed buffers of io_uring: transfers find their pages pinned."""

import re
from pathlib import Path
from typing import Any

from kvring._native import RegisteredMemory
from kvring.connector import Connector
from kvring.engine_store import register_memory

__all__ = ["register_l1"]

_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .{4} [0-9a-f]+ \S+ \d+ +(.*)$", re.MULTILINE)

# Shared memory of POSIX, and memfd_create(2). All of it is there from the start.
_SHARED_MEMORY = ("/dev/shm/", "/memfd:")


def register_l1(store: Connector, description: Any) -> RegisteredMemory | None:
    """Register LMCache's L1 memory with a store, as far as it stays as it is.

    Args:
        store: The store whose transfers use the memory.
        description: LMCache's L1MemoryDesc, or None.

    Returns:
        What unregisters it when it is closed; None if there is nothing to register, or it is
        refused: then transfers go on without, and the log says why.
    """
    if description is None:
        return None
    # Never `size`: an L1 that is allocated lazily is not there yet.
    length_bytes = description.stable_registration_size
    if length_bytes is None and _is_shared_memory(description.ptr, description.size):
        length_bytes = description.size
    if not length_bytes:
        return None
    return register_memory(store, description.ptr, length_bytes)


def _is_shared_memory(address: int, length_bytes: int) -> bool:
    """Say whether all of the memory is mapped shared memory, of which LMCache tells no size."""
    end = address
    try:
        mappings = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return False
    for first, last, name in _MAPPING.findall(mappings):
        if int(first, 16) <= end < int(last, 16) and name.startswith(_SHARED_MEMORY):
            end = int(last, 16)
    return end >= address + length_bytes
