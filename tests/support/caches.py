"""LMCache's own StorageManager over one L2 adapter, as a serving engine would use it."""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import EventBusConfig, init_event_bus

from tests.support.adapter_spec import AdapterSpec

if TYPE_CHECKING:
    from typing_extensions import Self

DEADLINE_S = 300.0


class CacheError(Exception):
    """LMCache did not do what it was asked to."""


class _StoreCounter:
    """Counts the chunks whose L2 store has ended.

    The store controller publishes L2_STORE_COMPLETED only after the adapter reported the batch
    done, and says how many chunks of it succeeded. The counts of queued and running tasks in
    report_status() would not do: both are zero for a moment while a batch is being handed over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._succeeded = 0
        self._failed = 0

    def on_store_completed(self, event: Event) -> None:
        with self._changed:
            self._succeeded += event.metadata["succeeded_count"]
            self._failed += event.metadata["failed_count"]
            self._changed.notify_all()

    def wait_for(self, count: int, timeout_s: float, advance: Callable[[int], None]) -> None:
        deadline_s = time.monotonic() + timeout_s
        shown = 0
        with self._changed:
            while True:
                advance(self._succeeded - shown)
                shown = self._succeeded
                if self._failed:
                    raise CacheError(f"{self._failed} chunks could not be stored in L2")
                if self._succeeded >= count:
                    return
                if not self._changed.wait(deadline_s - time.monotonic()):
                    raise CacheError(
                        f"only {self._succeeded} of {count} chunks were in L2 after {timeout_s} s"
                    )


class CacheSession:
    """One process's StorageManager, from its opening to its closing."""

    def __init__(
        self,
        spec: AdapterSpec,
        l1_size_bytes: int,
        *further: AdapterSpec,
        store_policy: str = "default",
    ) -> None:
        """Open LMCache.

        Args:
            spec: The L2 adapter.
            l1_size_bytes: The memory above it.
            further: L2 adapters behind it.
            store_policy: LMCache's; with "skip_l1" that memory keeps nothing that is stored.
        """
        self._counter = _StoreCounter()
        # The StorageManager keeps the bus it finds at its start, so this one has to come first.
        self._bus = init_event_bus(EventBusConfig())
        self._bus.subscribe(EventType.L2_STORE_COMPLETED, self._counter.on_store_completed)
        self._bus.start()
        adapters = parse_args_to_l2_adapters_config(
            argparse.Namespace(l2_adapter=[json.dumps(one) for one in (spec, *further)])
        )
        memory = L1MemoryManagerConfig(size_in_bytes=l1_size_bytes, use_lazy=False, shm_name="")
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(memory_config=memory),
                eviction_config=EvictionConfig(eviction_policy="LRU"),
                l2_adapter_config=adapters,
                store_policy=store_policy,
            )
        )

    def __enter__(self) -> "Self":
        """Return the open session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close LMCache, whatever happened before."""
        self.manager.close()
        self._bus.stop()

    @contextmanager
    def write(
        self, keys: Sequence[ObjectKey], layout: MemoryLayoutDesc
    ) -> Iterator[list[torch.Tensor]]:
        """Lend LMCache's memory for ``keys``, in their order, to be filled; then hand it over."""
        reserved = self.manager.reserve_write(list(keys), layout)
        if len(reserved) != len(keys):
            raise CacheError(f"LMCache reserved memory for {len(reserved)} of {len(keys)} keys")
        yield [reserved[key].tensor for key in keys]
        self.manager.finish_write(list(keys))

    def wait_until_stored(
        self,
        count: int,
        advance: Callable[[int], None] = lambda _amount: None,
        timeout_s: float = DEADLINE_S,
    ) -> None:
        """Return when ``count`` chunks of this session are in L2, or raise ``CacheError``."""
        self._counter.wait_for(count, timeout_s, advance)

    def prefetch(
        self, keys: Sequence[ObjectKey], layout: MemoryLayoutDesc, *, with_memory: bool = False
    ) -> list[bool]:
        """Load ``keys`` from L2 into LMCache's memory and say which of them were found in L2.

        ``with_memory`` counts those, too, that another request had in LMCache's memory.
        """
        group = GroupedObjectKeys(keys=list(keys), object_group_id=0, layout_desc=layout)
        task = PrefetchTaskSpec(key_groups=[group], fetching_policy="full")
        handle = self.manager.submit_prefetch_task(task)
        if not self.manager.wait_prefetch_status(handle, DEADLINE_S):
            raise CacheError(f"the prefetch of {len(keys)} keys did not end in {DEADLINE_S} s")
        result = self.manager.query_prefetch_status(handle)
        if result is None:
            raise CacheError("the prefetch ended without a result")
        hits = result.hit_cells[0] if with_memory else result.l2_hit_cells[0]
        return [hits.test(index) for index in range(len(keys))]

    @contextmanager
    def read(self, keys: Sequence[ObjectKey]) -> Iterator[list[torch.Tensor]]:
        """Lend the memory of prefetched ``keys``, in their order, and release it afterwards."""
        with self.manager.read_prefetched_results(list(keys)) as objects:
            if objects is None:
                raise CacheError("LMCache lost keys between their prefetch and their use")
            yield [memory.tensor for memory in objects]
        self.manager.finish_read_prefetched(list(keys))
