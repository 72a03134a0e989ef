"""Drives an L2 adapter as LMCache's controllers do, but waits for each task's end."""

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy
import torch
from lmcache.cli.commands.bench.l2_adapter_bench.data import make_aligned_tensor
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2AdapterListener, L2StoreResult
from lmcache.v1.distributed.l2_adapters import L2AdapterInterface, create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_management import MemoryFormat, MemoryObj, MemoryObjMetadata, TensorMemoryObj

from tests.support.adapter_spec import AdapterSpec

DEADLINE_S = 60.0
POLL_INTERVAL_S = 0.001
Result = TypeVar("Result")


def make_key(number: int, model: str = "test/model", salt: str = "") -> ObjectKey:
    """Build the key of one chunk of a model."""
    return ObjectKey(
        chunk_hash=number.to_bytes(32, "big"),
        model_name=model,
        kv_rank=ObjectKey.ComputeKVRank(1, 0, 1, 0),
        cache_salt=salt,
    )


def random_bytes(size_bytes: int, seed: int) -> bytes:
    """Return bytes that depend on the seed alone."""
    return bytes(numpy.random.default_rng(seed).bytes(size_bytes))


def metadata_of(
    size_bytes: int, address: int = 0, fmt: MemoryFormat = MemoryFormat.KV_2LTD
) -> MemoryObjMetadata:
    """Describe a memory object of bytes at an address of its arena."""
    return MemoryObjMetadata(
        shape=torch.Size([size_bytes]),
        dtype=torch.uint8,
        address=address,
        phy_size=size_bytes,
        fmt=fmt,
        ref_count=1,
    )


def make_memory(size_bytes: int, align_bytes: int = 4096) -> MemoryObj:
    """Allocate one of LMCache's memory objects, aligned as its L1 memory is by default."""
    raw_data = make_aligned_tensor(size_bytes, align_bytes)
    return TensorMemoryObj(raw_data, metadata_of(size_bytes), parent_allocator=None)


def chunks_in(
    arena: torch.Tensor, slot_bytes: int, chunk_bytes: int, slots: range
) -> list[MemoryObj]:
    """Lay chunks out in some slots of an arena.

    Where chunks are shorter than their slots, every other one starts at an odd address, so that
    kvring copies through its own blocks.
    """
    chunks: list[MemoryObj] = []
    for slot in slots:
        start = slot * slot_bytes + (slot % 2 if chunk_bytes < slot_bytes else 0)
        raw_data = arena[start : start + chunk_bytes]
        chunks.append(TensorMemoryObj(raw_data, metadata_of(chunk_bytes, start), None))
    return chunks


def filled_memory(content: bytes) -> MemoryObj:
    """Allocate a memory object that holds ``content``."""
    memory = make_memory(len(content))
    memory.raw_data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return memory


def bytes_of(memory: MemoryObj) -> bytes:
    """Return what a memory object holds."""
    return bytes(memory.byte_array)


class RecordingListener(L2AdapterListener):
    """Notes what the adapter tells LMCache's eviction about."""

    def __init__(self) -> None:
        """Start with nothing noted."""
        self.stored: list[tuple[ObjectKey, int]] = []
        self.accessed: list[ObjectKey] = []
        self.deleted: list[ObjectKey] = []

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        """Note stored keys and their sizes."""
        self.stored.extend(zip(keys, sizes, strict=True))

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None:
        """Note loaded keys."""
        self.accessed.extend(keys)

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        """Note deleted keys."""
        self.deleted.extend(keys)


class AdapterDriver:
    """An adapter made by LMCache's own factory, usable from several threads at once."""

    def __init__(self, spec: AdapterSpec) -> None:
        """Create the adapter that ``spec`` describes."""
        arguments = argparse.Namespace(l2_adapter=[json.dumps(spec)])
        self.config = parse_args_to_l2_adapters_config(arguments).adapters[0]
        self.adapter: L2AdapterInterface = create_l2_adapter(self.config)
        self.listener = RecordingListener()
        self.adapter.register_listener(self.listener)
        self._lock = threading.Lock()
        self._ended_stores: dict[int, L2StoreResult] = {}

    def store(self, keys: Sequence[ObjectKey], contents: Sequence[bytes]) -> bool:
        """Store a batch and return whether it succeeded."""
        memories = [filled_memory(content) for content in contents]
        task = self.adapter.submit_store_task(list(keys), memories)
        result = self._wait(lambda: self._take_store_result(task))
        # The buffers must live until here: LMCache keeps its own in L1 for as long.
        del memories
        return bool(result.is_successful())

    def lookup(self, keys: Sequence[ObjectKey]) -> list[bool]:
        """Look a batch up, give its locks back, and return which keys were found."""
        task = self.adapter.submit_lookup_and_lock_task(list(keys), {})
        bitmap = self._wait(lambda: self.adapter.query_lookup_and_lock_result(task))
        found = _bits(bitmap, len(keys))
        self.adapter.submit_unlock([key for key, hit in zip(keys, found, strict=True) if hit])
        return found

    def load(self, keys: Sequence[ObjectKey], memories: Sequence[MemoryObj]) -> list[bool]:
        """Load a batch into ``memories`` and return which keys were loaded."""
        task = self.adapter.submit_load_task(list(keys), list(memories))
        bitmap = self._wait(lambda: self.adapter.query_load_result(task))
        return _bits(bitmap, len(keys))

    def load_bytes(self, keys: Sequence[ObjectKey], sizes: Sequence[int]) -> list[bytes | None]:
        """Load a batch into fresh memory and return the contents, None for what was not loaded."""
        memories = [make_memory(size_bytes) for size_bytes in sizes]
        loaded = self.load(keys, memories)
        return [
            bytes_of(memory) if hit else None for memory, hit in zip(memories, loaded, strict=True)
        ]

    def used_bytes(self) -> int:
        """Return LMCache's own account of what the adapter holds."""
        return int(self.adapter.get_usage().total_bytes_used)

    def close(self) -> None:
        """Close the adapter."""
        self.adapter.close()

    def _take_store_result(self, task: int) -> L2StoreResult | None:
        # Popping takes everybody's results, so those of other threads are kept for them.
        with self._lock:
            self._ended_stores.update(self.adapter.pop_completed_store_tasks())
            return self._ended_stores.pop(task, None)

    def _wait(self, poll: Callable[[], Result | None]) -> Result:
        deadline_s = time.monotonic() + DEADLINE_S
        while (result := poll()) is None:
            assert time.monotonic() < deadline_s, f"no completion within {DEADLINE_S} s"
            time.sleep(POLL_INTERVAL_S)
        return result


def _bits(bitmap: Bitmap, count: int) -> list[bool]:
    assert bitmap.size() == count
    return [bool(bitmap.test(index)) for index in range(count)]
