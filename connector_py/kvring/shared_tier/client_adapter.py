"""A client of a shared tier as an adapter of LMCache, with threads that wait for it."""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase, get_type_name_for_config
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.memory_management import TensorMemoryObj

from kvring.shared_tier.buffers import bytes_of
from kvring.shared_tier.clients import Client, DirectoryClient, RedisClient

__all__ = ["ClientAdapter", "create_adapter"]

_CLIENTS: Final[dict[str, Callable[[Any], Client]]] = {
    "resp": RedisClient,
    "fs": DirectoryClient,
    "fs_native": DirectoryClient,
}
# LMCache's `fs` takes no number of threads.
_WORKERS: Final = 4
# Sidecars and probes do not wait behind chunks.
_FEW_BYTES: Final = 4096

_Part = Callable[[], list[bool]]


def create_adapter(config: L2AdapterConfigBase) -> Any:
    """Make the adapter of a configuration: kvring's own, where there is one, or LMCache's.

    Raises:
        Exception: Whatever keeps it from being made.
    """
    client = _CLIENTS.get(get_type_name_for_config(config))
    if client is None:
        return create_l2_adapter_from_registry(config)
    return ClientAdapter(client(config), getattr(config, "num_workers", _WORKERS))


class _Task:
    def __init__(self, count: int, finish: Callable[[list[bool]], None]) -> None:
        self._parts: list[list[bool]] = [[]] * count
        self._waiting = count
        self._finish = finish
        self._lock = threading.Lock()

    def note(self, number: int, results: list[bool]) -> None:
        with self._lock:
            self._parts[number] = results
            self._waiting -= 1
            if self._waiting:
                return
        self._finish([result for part in self._parts for result in part])


class ClientAdapter:
    """As much of LMCache's L2AdapterInterface as `Connection` asks for. Nothing is ever locked."""

    def __init__(self, client: Client, workers: int) -> None:
        """Start threads: so many for chunks, and one for all that is small."""
        self._client = client
        # Why the last call failed.
        self.last_error = ""
        self._is_closing = False
        self._next_task = 0
        self._stored: dict[int, L2StoreResult] = {}
        self._answered: dict[int, Bitmap] = {}
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._chunks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._small: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            for queue in (self._small, *[self._chunks] * workers):
                thread = threading.Thread(target=self._work, args=(queue,), daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def get_store_event_fd(self) -> int:
        """Return what is readable when anything has completed."""
        return self._descriptor

    get_lookup_and_lock_event_fd = get_store_event_fd
    get_load_event_fd = get_store_event_fd

    def submit_store_task(self, keys: list[ObjectKey], objects: list[TensorMemoryObj]) -> int:
        """Write objects; return the task."""

        def write(key: ObjectKey, memory: memoryview) -> list[bool]:
            self._client.write(key, memory)
            return [True]

        return self._transfer(write, keys, objects, self._note_stored)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Take what became of stores."""
        return {task: self._stored.pop(task) for task in list(self._stored)}

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], layouts: dict[int, Any]) -> int:
        """Ask which keys are there; return the task."""
        del layouts
        return self._submit(
            self._small, [partial(self._client.has, keys)], [len(keys)], self._note_answered
        )

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Do nothing."""

    def submit_load_task(self, keys: list[ObjectKey], objects: list[TensorMemoryObj]) -> int:
        """Read objects; return the task."""

        def read(key: ObjectKey, memory: memoryview) -> list[bool]:
            return [self._client.read(key, memory)]

        return self._transfer(read, keys, objects, self._note_answered)

    def query_load_result(self, task: int) -> Bitmap | None:
        """Take the bitmap of a lookup or a load, once; None as long as it is under way."""
        return self._answered.pop(task, None)

    query_lookup_and_lock_result = query_load_result

    def close(self) -> None:
        """Drop what waits, and wait for what is under way."""
        self._is_closing = True
        self._small.put(None)
        for _ in self._threads:
            self._chunks.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self._descriptor)

    def _transfer(
        self,
        move: Callable[[ObjectKey, memoryview], list[bool]],
        keys: list[ObjectKey],
        objects: list[TensorMemoryObj],
        note: Callable[[int, list[bool]], None],
    ) -> int:
        is_small = all(one.get_size() <= _FEW_BYTES for one in objects)
        parts = [partial(move, key, bytes_of(one)) for key, one in zip(keys, objects, strict=True)]
        return self._submit(
            self._small if is_small else self._chunks, parts, [1] * len(parts), note
        )

    def _submit(
        self,
        queue: "SimpleQueue[Callable[[], None] | None]",
        parts: Sequence[_Part],
        counts: list[int],
        note: Callable[[int, list[bool]], None],
    ) -> int:
        number = self._next_task
        self._next_task += 1
        task = _Task(len(parts), partial(note, number))
        for position, (part, count) in enumerate(zip(parts, counts, strict=True)):
            queue.put(partial(self._do, task, position, part, count))
        return number

    def _work(self, queue: "SimpleQueue[Callable[[], None] | None]") -> None:
        while (work := queue.get()) is not None:
            work()

    def _do(self, task: _Task, position: int, part: _Part, count: int) -> None:
        results = [False] * count
        if not self._is_closing:
            try:
                results = part()
            except Exception as error:  # noqa: BLE001 - whatever a client raises
                self.last_error = str(error) or type(error).__name__
        task.note(position, results)

    def _note_stored(self, task: int, results: list[bool]) -> None:
        self._stored[task] = L2StoreResult(all(results), 0)
        os.eventfd_write(self._descriptor, 1)

    def _note_answered(self, task: int, results: list[bool]) -> None:
        bitmap = Bitmap(len(results))
        bitmap.batched_set([number for number, result in enumerate(results) if result])
        self._answered[task] = bitmap
        os.eventfd_write(self._descriptor, 1)
