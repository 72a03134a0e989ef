"""One connection to a shared tier: an adapter of LMCache, asked by one thread that never waits."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import (
    NativeConnectorL2Adapter,
)
from lmcache.v1.memory_management import TensorMemoryObj

__all__ = ["Connection", "release"]

_logger = logging.getLogger(__name__)

_Answer = Callable[[list[bool]], None]


def release(counts: Counter[ObjectKey], key: ObjectKey) -> bool:
    """Count one less of a key; say whether there was one."""
    count = counts[key]
    if count > 1:
        counts[key] = count - 1
    else:
        del counts[key]
    return count > 0


class Connection:
    """What is under way with an adapter. All but the making and the end is for one thread."""

    def __init__(self, config: L2AdapterConfigBase, identity: str) -> None:
        """Make the adapter. It may wait for the network, as long as the adapter does.

        Args:
            config: Of the adapter.
            identity: Who shares chunks: others find nothing of theirs. Empty for no such thing.
        """
        self._identity = identity
        self._adapter = create_l2_adapter_from_registry(config)
        self._lookups: dict[int, tuple[list[ObjectKey], _Answer]] = {}
        self._loads: dict[int, tuple[list[ObjectKey], list[TensorMemoryObj], _Answer]] = {}
        self._stores: dict[int, tuple[list[TensorMemoryObj], Callable[[bool], None]]] = {}
        self._locked: Counter[ObjectKey] = Counter()
        # When each load and store began, the oldest first.
        self._began_s: dict[tuple[int, str], float] = {}
        # What is readable when something has completed.
        self.event_fds = (
            self._adapter.get_store_event_fd(),
            self._adapter.get_lookup_and_lock_event_fd(),
            self._adapter.get_load_event_fd(),
        )

    def lookup(self, keys: list[ObjectKey], layouts: dict[int, Any], answer: _Answer) -> None:
        """Say of each key whether it is there, and lock those that are."""
        task = self._adapter.submit_lookup_and_lock_task(self._names(keys), layouts)
        self._lookups[task] = (keys, answer)

    def unlock(self, keys: list[ObjectKey]) -> None:
        """Give locks of lookups back; those of an earlier connection went with it."""
        held = [key for key in keys if release(self._locked, key)]
        if held:
            self._adapter.submit_unlock(self._names(held))

    def load(self, keys: list[ObjectKey], objects: list[TensorMemoryObj], answer: _Answer) -> None:
        """Load; the objects are the adapter's until the answer, or the end of the connection."""
        task = self._adapter.submit_load_task(self._names(keys), list(objects))
        self._loads[task] = (keys, objects, answer)
        self._began_s[task, "load"] = time.monotonic()

    def store(
        self,
        keys: list[ObjectKey],
        objects: list[TensorMemoryObj],
        answer: Callable[[bool], None],
    ) -> None:
        """Store; the objects are the adapter's until the answer, or the end of the connection."""
        task = self._adapter.submit_store_task(self._names(keys), list(objects))
        self._stores[task] = (objects, answer)
        self._began_s[task, "store"] = time.monotonic()

    def waits_since_s(self) -> float:
        """Return when the oldest load or store began that is not answered; infinity for none."""
        return next(iter(self._began_s.values()), math.inf)

    def take_results(self) -> None:
        """Give the answers that have come."""
        for task, result in self._adapter.pop_completed_store_tasks().items():
            _, stored = self._stores.pop(task)
            del self._began_s[task, "store"]
            stored(result.is_successful())
        for task, (keys, answer) in list(self._lookups.items()):
            bitmap = self._adapter.query_lookup_and_lock_result(task)
            if bitmap is not None:
                del self._lookups[task]
                self._locked.update(bitmap.gather(keys))
                answer([bitmap.test(number) for number in range(len(keys))])
        for task, (keys, _, answer) in list(self._loads.items()):
            bitmap = self._adapter.query_load_result(task)
            if bitmap is not None:
                del self._loads[task]
                del self._began_s[task, "load"]
                answer([bitmap.test(number) for number in range(len(keys))])

    def close(self) -> tuple[list[TensorMemoryObj], bool]:
        """End the connection; return what nobody will answer for, and whether nobody uses that.

        LMCache's native connectors wait for their threads. Others drop what is under way, and their
        threads may still read or write there (0.5.6: `fs`, `s3`).
        """
        objects = [one for _, objects, _ in self._loads.values() for one in objects]
        objects += [one for objects, _ in self._stores.values() for one in objects]
        try:
            self._adapter.close()
        except Exception:
            _logger.exception("an adapter of LMCache could not be closed")
            return objects, False
        return objects, isinstance(self._adapter, NativeConnectorL2Adapter)

    def _names(self, keys: list[ObjectKey]) -> list[ObjectKey]:
        """Return the keys as they are there: of a model by this identity, as in the store."""
        if not self._identity:
            return keys
        return [replace(key, model_name=f"{self._identity}#{key.model_name}") for key in keys]
