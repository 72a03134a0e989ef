"""Memory between LMCache's and a shared tier: what a tier does late, it does here."""

import threading
from typing import Any, Final

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

__all__ = ["Buffers"]

_BLOCK_BYTES: Final = 4096


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

    def take(self, length_bytes: int) -> TensorMemoryObj | None:
        """Return a memory object of this length, with any content; None at the limit."""
        with self._lock:
            if self.taken_bytes + length_bytes > self.limit_bytes:
                return None
            self.taken_bytes += length_bytes
            kept = self._kept.get(length_bytes)
            if kept:
                self._kept_bytes -= length_bytes
                return _object_over(kept.pop())
            # Of other lengths, which nobody may ask for again.
            while self._kept_bytes + self.taken_bytes > self.limit_bytes:
                other = next(size for size, tensors in self._kept.items() if tensors)
                self._kept[other].pop()
                self._kept_bytes -= other
        # At a whole block, as transfers without a copy need it.
        memory = torch.empty(length_bytes + _BLOCK_BYTES, dtype=torch.uint8)
        start = -memory.data_ptr() % _BLOCK_BYTES
        return _object_over(memory[start : start + length_bytes])

    def give_back(self, objects: list[TensorMemoryObj]) -> None:
        """Take memory objects back; nobody uses them any more."""
        with self._lock:
            for one in objects:
                length_bytes = one.raw_data.numel()
                self.taken_bytes -= length_bytes
                self._kept_bytes += length_bytes
                self._kept.setdefault(length_bytes, []).append(one.raw_data)


def _object_over(memory: torch.Tensor) -> TensorMemoryObj:
    length_bytes = memory.numel()
    metadata: Any = MemoryObjMetadata(
        shape=torch.Size([length_bytes]),
        dtype=torch.uint8,
        address=0,
        phy_size=length_bytes,
        ref_count=1,
        fmt=MemoryFormat.BINARY,
    )
    return TensorMemoryObj(memory, metadata, None)
