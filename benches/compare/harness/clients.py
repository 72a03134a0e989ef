"""One face for all that is measured: connectors of LMCache, and its adapters."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Any, Protocol

from typing_extensions import override

Completion = tuple[int, bool, str, "list[bool] | None"]


class NativeConnector(Protocol):
    """What LMCache asks of a native connector."""

    def event_fd(self) -> int:
        """Return the descriptor that becomes readable when there is something to drain."""

    def submit_batch_set(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Begin to store the memory under the keys."""

    def submit_batch_get(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Begin to load the keys into the memory."""

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Begin to look the keys up."""

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Begin to remove the keys."""

    def drain_completions(self) -> Sequence[Completion]:
        """Return what has completed since the last call."""

    def close(self) -> None:
        """Let go of everything."""


class Client(Protocol):
    """What the workloads drive. Keys and chunks are first turned into what the client takes."""

    def event_fd(self) -> int:
        """Return a descriptor that is readable while completions wait."""

    def keys(self, names: list[str]) -> list[Any]:
        """Turn names into keys. Not timed."""

    def chunks(self, memory: list[memoryview]) -> list[Any]:
        """Turn memory into chunks. Not timed."""

    def submit_set(self, keys: list[Any], chunks: list[Any]) -> int:
        """Begin to store the chunks."""

    def submit_get(self, keys: list[Any], chunks: list[Any]) -> int:
        """Begin to load into the chunks."""

    def submit_exists(self, keys: list[Any]) -> int:
        """Begin to look the keys up."""

    def submit_delete(self, keys: list[Any]) -> int:
        """Begin to remove the keys."""

    def drain(self) -> Sequence[Completion]:
        """Return what has completed since the last call."""

    def unlock(self, keys: list[Any]) -> None:
        """Undo what submit_exists has locked. Not timed."""

    def facts(self) -> dict[str, object]:
        """Tell how it runs, as far as it says anything."""

    def close(self) -> None:
        """Let go of everything."""


# A figure is only worth comparing if it was reached through the ring, and past the page cache.
_TELLING_STATS = ("engine", "direct_io")


class NativeClient(Client):
    """A native connector, driven as LMCache's adapter drives it."""

    def __init__(self, connector: NativeConnector, registered: Any = None) -> None:
        """Take a connector, and what is to be closed before it."""
        self._connector = connector
        self._registered = registered

    @override
    def event_fd(self) -> int:
        return self._connector.event_fd()

    @override
    def keys(self, names: list[str]) -> list[str]:
        return names

    @override
    def chunks(self, memory: list[memoryview]) -> list[memoryview]:
        return memory

    @override
    def submit_set(self, keys: list[str], chunks: list[memoryview]) -> int:
        return self._connector.submit_batch_set(keys, chunks)

    @override
    def submit_get(self, keys: list[str], chunks: list[memoryview]) -> int:
        return self._connector.submit_batch_get(keys, chunks)

    @override
    def submit_exists(self, keys: list[str]) -> int:
        return self._connector.submit_batch_exists(keys)

    @override
    def submit_delete(self, keys: list[str]) -> int:
        return self._connector.submit_batch_delete(keys)

    @override
    def drain(self) -> Sequence[Completion]:
        return self._connector.drain_completions()

    @override
    def unlock(self, keys: list[str]) -> None:
        """A connector locks nothing."""

    @override
    def facts(self) -> dict[str, object]:
        stats = getattr(self._connector, "stats", None)
        if stats is None:
            return {}
        return {name: value for name, value in stats().items() if name in _TELLING_STATS}

    @override
    def close(self) -> None:
        if self._registered is not None:
            self._registered.close()
        self._connector.close()
        # kvring's files stay open until the object goes, and keep their file system mounted.
        del self._connector


class AdapterClient(Client):
    """An L2 adapter of LMCache that has no native connector below it."""

    def __init__(self, adapter: Any, facts: dict[str, object]) -> None:
        from lmcache.v1.platform import consume_fd

        self._adapter = adapter
        self._facts = facts
        self._consume = consume_fd
        self._store_fd = int(adapter.get_store_event_fd())
        self._lookup_fd = int(adapter.get_lookup_and_lock_event_fd())
        self._load_fd = int(adapter.get_load_event_fd())
        # delete() blocks its caller: its completions come from here.
        self._delete_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._deleted: list[int] = []
        self._next_delete = -1
        self._lookups: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        # One descriptor for four: an epoll descriptor can itself be polled.
        self._epoll = select.epoll()
        for descriptor in (self._store_fd, self._lookup_fd, self._load_fd, self._delete_fd):
            self._epoll.register(descriptor, select.EPOLLIN)

    @override
    def event_fd(self) -> int:
        return self._epoll.fileno()

    @override
    def keys(self, names: list[str]) -> list[Any]:
        from lmcache.v1.distributed.api import ObjectKey

        fields = [name.split("@") for name in names]
        return [
            ObjectKey(bytes.fromhex(chunk_hash), model, int(rank, 16), int(group, 16))
            for model, rank, group, chunk_hash in fields
        ]

    @override
    def chunks(self, memory: list[memoryview]) -> list[Any]:
        return [_memory_object(one) for one in memory]

    @override
    def submit_set(self, keys: list[Any], chunks: list[Any]) -> int:
        return int(self._adapter.submit_store_task(keys, chunks))

    @override
    def submit_get(self, keys: list[Any], chunks: list[Any]) -> int:
        task = int(self._adapter.submit_load_task(keys, chunks))
        self._loads[task] = len(keys)
        return task

    @override
    def submit_exists(self, keys: list[Any]) -> int:
        task = int(self._adapter.submit_lookup_and_lock_task(keys, {}))
        self._lookups[task] = len(keys)
        return task

    @override
    def submit_delete(self, keys: list[Any]) -> int:
        self._adapter.delete(keys)
        self._next_delete -= 1
        self._deleted.append(self._next_delete)
        os.eventfd_write(self._delete_fd, 1)
        return self._next_delete

    @override
    def drain(self) -> Sequence[Completion]:
        completions: list[Completion] = []
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._delete_fd:
                os.eventfd_read(descriptor)
                completions += [(future, True, "", None) for future in self._deleted]
                self._deleted.clear()
                continue
            self._consume(descriptor)
            if descriptor == self._store_fd:
                for task, result in self._adapter.pop_completed_store_tasks().items():
                    ok = bool(result.is_successful())
                    completions.append((int(task), ok, "" if ok else "the store failed", None))
            elif descriptor == self._lookup_fd:
                completions += _results(self._lookups, self._adapter.query_lookup_and_lock_result)
            else:
                completions += _results(self._loads, self._adapter.query_load_result)
        return completions

    @override
    def unlock(self, keys: list[Any]) -> None:
        self._adapter.submit_unlock(keys)

    @override
    def facts(self) -> dict[str, object]:
        return self._facts

    @override
    def close(self) -> None:
        self._epoll.close()
        self._adapter.close()
        os.close(self._delete_fd)


def _results(pending: dict[int, int], query: Any) -> list[Completion]:
    completions: list[Completion] = []
    for task, count in list(pending.items()):
        bitmap = query(task)
        if bitmap is None:
            continue
        del pending[task]
        found = bitmap.popcount()
        if found in (0, count):
            bools = [found == count] * count
        else:
            bools = [bitmap.test(index) for index in range(count)]
        completions.append((task, True, "", bools))
    return completions


def _memory_object(memory: memoryview) -> Any:
    """Wrap memory as L1 wraps it."""
    import torch
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    metadata = MemoryObjMetadata(
        shape=torch.Size([len(memory)]),
        dtype=torch.uint8,
        address=0,
        phy_size=len(memory),
        fmt=MemoryFormat.KV_2LTD,
        ref_count=1,
    )
    return TensorMemoryObj(raw_data=tensor, metadata=metadata, parent_allocator=None)
