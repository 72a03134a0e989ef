"""A kvring store in front of a tier that many nodes share: Redis, S3, a common file system."""

import itertools
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.memory_management import TensorMemoryObj

from kvring._native import ClosedError, KvRingError
from kvring.lmcache.adapter import KvringL2Adapter, KvringL2AdapterConfig
from kvring.lmcache.variants import Variants
from kvring.logs import warn
from kvring.shared_tier import metrics
from kvring.shared_tier.buffers import Buffers
from kvring.shared_tier.key_locks import KeyLocks
from kvring.shared_tier.limits import LIMITS, TIER
from kvring.shared_tier.options import SharedOptions
from kvring.shared_tier.sidecars import Sidecar
from kvring.shared_tier.tier import SharedTier

__all__ = ["KvringSharedL2Adapter", "KvringSharedL2AdapterConfig"]

_logger = logging.getLogger(__name__)


class KvringSharedL2AdapterConfig(L2AdapterConfigBase):
    """The options of a store and of a shared tier, as `adapter_params` has them."""

    def __init__(self, options: dict[str, Any], shared: SharedOptions) -> None:
        super().__init__()
        self.options = options
        self.shared_options = shared

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> "KvringSharedL2AdapterConfig":
        """Take `adapter_params`.

        Raises:
            ConfigError: An option of the shared tier cannot be used.
        """
        options = dict(d)
        shared = SharedOptions.take(options)
        return cls(options, shared)

    @classmethod
    def help(cls) -> str:
        """Tell every option."""
        lines = [
            f"- {name}: {one.meaning}; takes {one.takes}; default {one.default}"
            for name, one in {"shared_tier": TIER, **LIMITS}.items()
        ]
        return "\n".join([KvringL2AdapterConfig.help(), *lines])


@dataclass
class _Load:
    count: int
    # Which of the keys are asked for where.
    local: list[int]
    shared: list[int]
    # None as long as it is under way.
    local_task: int | None = None
    local_results: Bitmap | None = None
    shared_results: list[bool] | None = None


class KvringSharedL2Adapter(KvringL2Adapter):
    """Asks the store first, and the shared tier for what is not there.

    What comes from the shared tier is stored, so that it is there the next time. What LMCache
    stores goes to both.
    """

    def __init__(self, config: KvringSharedL2AdapterConfig, l1_memory_desc: Any = None) -> None:
        """Open the store, and begin to connect to the shared tier.

        Raises:
            KvRingError: As `kvring.Connector` does.
            OSError: Likewise.
        """
        # Of all below, except the tier. The shared tier's thread takes it too.
        self._lock = threading.Lock()
        self._copying: set[int] = set()
        self._stored: dict[int, L2StoreResult] = {}
        self._promotions: dict[int, tuple[list[ObjectKey], list[TensorMemoryObj]]] = {}
        self._lookups: dict[int, Bitmap | None] = {}
        self._loads: dict[int, _Load] = {}
        self._load_numbers = itertools.count()
        self._locks = KeyLocks()
        super().__init__(config.options, l1_memory_desc)
        shared = config.shared_options
        self._buffers = Buffers(shared.limits.buffer_bytes)
        try:
            variants = Variants(shared.identity, self._weights, is_portable=True)
            self._tier = SharedTier(shared, self._buffers, variants, self._promote)
        except BaseException:
            # No thread, or no descriptor.
            super().close()
            raise
        self._path = self._store.stats()["paths"][0]["path"]
        metrics.collector.add(self._path, self._tier)

    def submit_store_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        """Store memory objects here, and copies of them in the shared tier; return the task."""
        with self._lock:
            task = super().submit_store_task(keys, objects)
            self._copying.add(task)
        self._tier.store(keys, objects, lambda: self._note_copied(task))
        return task

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Take what became of stores, of those whose memory nobody needs any more."""
        with self._lock:
            for task, result in super().pop_completed_store_tasks().items():
                promoted = self._promotions.pop(task, None)
                if promoted is None:
                    self._stored[task] = result
                else:
                    keys, objects = promoted
                    # A store that admission refuses succeeds as well.
                    with suppress(ClosedError):
                        self._tier.counts["promoted"] += sum(self._tasks.holds(keys))
                    self._buffers.give_back(objects)
            ready = [task for task in self._stored if task not in self._copying]
            return {task: self._stored.pop(task) for task in ready}

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, Any]
    ) -> int:
        """Look keys up here, and those that are not here in the shared tier; lock what is there."""
        task = super().submit_lookup_and_lock_task(keys, group_layout_descs)
        bitmap = super().query_lookup_and_lock_result(task)
        # The store answers at once.
        assert bitmap is not None
        missing = [number for number in range(len(keys)) if not bitmap.test(number)]
        with self._lock:
            self._locks.note((key, None) for key in bitmap.gather(keys))
            self._lookups[task] = None if missing else bitmap
        if not missing:
            return task

        def answer(sidecars: list[Sidecar | None]) -> None:
            found = {
                number: sidecar
                for number, sidecar in zip(missing, sidecars, strict=True)
                if sidecar is not None
            }
            bitmap.batched_set(list(found))
            with self._lock:
                self._locks.note((keys[number], sidecar) for number, sidecar in found.items())
                self._lookups[task] = bitmap
            os.eventfd_write(self.get_lookup_and_lock_event_fd(), 1)

        self._tier.lookup([keys[number] for number in missing], group_layout_descs, answer)
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """Take the bitmap of a lookup, once; None as long as it is under way."""
        with self._lock:
            if self._lookups.get(task_id) is None:
                return None
            return self._lookups.pop(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Give locks of lookups back."""
        with self._lock:
            local = [key for key in keys if self._locks.unlock(key)]
        super().submit_unlock(local)

    def submit_load_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        """Load into memory objects from where the keys were found; return the task."""
        with self._lock:
            sidecars = {
                number: sidecar
                for number, key in enumerate(keys)
                if (sidecar := self._locks.newest(key)) is not None
            }
            load = _Load(
                len(keys),
                local=[number for number in range(len(keys)) if number not in sidecars],
                shared=list(sidecars),
            )
            task = next(self._load_numbers)
            self._loads[task] = load
            if load.local or not keys:
                load.local_task = super().submit_load_task(*_chosen(keys, objects, load.local))
            if not load.shared:
                load.shared_results = []

        def answer(loaded: list[bool]) -> None:
            load.shared_results = loaded
            os.eventfd_write(self.get_load_event_fd(), 1)

        if load.shared:
            chosen_keys, chosen_objects = _chosen(keys, objects, load.shared)
            self._tier.load(chosen_keys, list(sidecars.values()), chosen_objects, answer)
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """Take the bitmap of a load, once; None as long as it is under way."""
        with self._lock:
            load = self._loads.get(task_id)
            if load is None:
                return None
            if load.local_task is not None and load.local_results is None:
                load.local_results = super().query_load_result(load.local_task)
                if load.local_results is None:
                    return None
            if load.shared_results is None:
                return None
            del self._loads[task_id]
        bitmap = Bitmap(load.count)
        if load.local_results is not None:
            bitmap.batched_set(load.local_results.gather(load.local))
        pairs = zip(load.shared, load.shared_results, strict=True)
        bitmap.batched_set([number for number, is_loaded in pairs if is_loaded])
        return bitmap

    def report_status(self) -> dict[str, Any]:
        """Describe the store and the shared tier. Health is the store's alone."""
        return {**super().report_status(), "shared_tier": metrics.report(self._tier)}

    def close(self) -> None:
        """Leave the shared tier, finish or drop what is queued, and let go of all memory."""
        # It is missing where the store could not be opened.
        tier: SharedTier | None = getattr(self, "_tier", None)
        if tier is not None:
            metrics.collector.remove(self._path, tier)
            tier.close()
        super().close()

    def _note_copied(self, task: int) -> None:
        with self._lock:
            self._copying.discard(task)
            is_stored = task in self._stored
        if is_stored:
            os.eventfd_write(self.get_store_event_fd(), 1)

    def _promote(self, keys: list[ObjectKey], objects: list[TensorMemoryObj]) -> None:
        with self._lock:
            try:
                task = super().submit_store_task(keys, objects)
            except Exception as error:  # noqa: BLE001 - whatever keeps it from being stored
                if not isinstance(error, KvRingError):
                    warn(_logger, "a chunk of the shared tier is not kept: %s", error)
                self._buffers.give_back(objects)
            else:
                self._promotions[task] = (keys, objects)


def _chosen(
    keys: list[ObjectKey], objects: list[Any], numbers: list[int]
) -> tuple[list[ObjectKey], list[Any]]:
    return [keys[number] for number in numbers], [objects[number] for number in numbers]
