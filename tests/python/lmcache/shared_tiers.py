"""Nodes with a shared tier for tests: a real Redis, a network that fails, and kvring in front."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmcache.v1.distributed.api import ObjectKey

from kvring.lmcache import KvringSharedL2Adapter, KvringSharedL2AdapterConfig
from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S, is_readable, until
from tests.python.lmcache.adapter_driver import filled_memory

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK_BYTES = 256 * 1024 + 64
# What one takes of shared_buffer.
BUFFER_BYTES = CHUNK_BYTES + 4096
NUMBERS = list(range(12))
ALL = [True] * len(NUMBERS)
NONE = [False] * len(NUMBERS)
# Longer than anything takes: whoever would wait for it hangs.
PATIENT = {
    "shared_lookup_deadline_ms": 4000 * HANG_DEADLINE_S,
    "shared_load_deadline_ms": 4000 * HANG_DEADLINE_S,
}


def keys_of(numbers: Sequence[int]) -> list[ObjectKey]:
    """Return the keys of numbers."""
    return [
        ObjectKey(chunk_hash=number.to_bytes(32, "big"), model_name="test/model", kv_rank=0)
        for number in numbers
    ]


def content_of(number: int, version: int = 0) -> bytes:
    """Return what is stored under a number."""
    return random.Random(f"{number}/{version}").randbytes(CHUNK_BYTES)


class Node:
    """A node: its store in a directory, in front of a shared tier."""

    def __init__(self, path: Path, port: int, **options: Any) -> None:
        """Open it."""
        parameters = {
            "path": str(path),
            "capacity": CAPACITY_BYTES,
            "min_free": 0,
            "shared_tier": {"type": "resp", "host": "127.0.0.1", "port": port, "num_workers": 2},
            **options,
        }
        self.adapter = KvringSharedL2Adapter(KvringSharedL2AdapterConfig.from_dict(parameters))

    def __enter__(self) -> "Self":
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.adapter.close()

    @property
    def tier(self) -> dict[str, Any]:
        """What the status says of the shared tier."""
        # LMCache asks when a store has completed.
        self.adapter.pop_completed_store_tasks()
        tier: dict[str, Any] = self.adapter.report_status()["shared_tier"]
        return tier

    def wait_answering(self, *, is_answering: bool = True) -> None:
        """Wait until the shared tier answers, or does not."""
        until(f"answering {is_answering}", lambda: self.tier["is_answering"] is is_answering)

    def store(self, numbers: Sequence[int], version: int = 0) -> bool:
        """Store chunks, and wait."""
        objects = [filled_memory(content_of(number, version)) for number in numbers]
        task = self.adapter.submit_store_task(keys_of(numbers), objects)
        results: dict[int, Any] = {}

        def has_come() -> bool:
            results.update(self.adapter.pop_completed_store_tasks())
            return task in results

        _wait(self.adapter.get_store_event_fd(), has_come)
        # They are LMCache's again, and it puts other things there.
        for one in objects:
            one.raw_data.fill_(0xEE)
        return bool(results[task].is_successful())

    def share(self, version: int = 0) -> None:
        """Store the chunks of NUMBERS, and wait until they are in the shared tier."""
        before: int = self.tier["stores"]
        assert self.store(NUMBERS, version)
        stored_in(self, before + len(NUMBERS))

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        """Look chunks up, and lock those that are there."""
        task = self.adapter.submit_lookup_and_lock_task(keys_of(numbers), {})
        return self._bitmap(
            self.adapter.get_lookup_and_lock_event_fd(),
            lambda: self.adapter.query_lookup_and_lock_result(task),
        )

    def unlock(self, numbers: Sequence[int]) -> None:
        """Give locks back."""
        self.adapter.submit_unlock(keys_of(numbers))

    def load(self, numbers: Sequence[int], version: int = 0) -> list[bool | None]:
        """Load chunks; None is one that is said to be there, and has other bytes."""
        objects = [filled_memory(bytes(CHUNK_BYTES)) for _ in numbers]
        task = self.adapter.submit_load_task(keys_of(numbers), objects)
        loaded = self._bitmap(
            self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task)
        )
        self.unlock(numbers)
        return [
            (one.raw_data.numpy().tobytes() == content_of(number, version) or None) if ok else False
            for number, one, ok in zip(numbers, objects, loaded, strict=True)
        ]

    def fetch(self, numbers: Sequence[int], version: int = 0) -> list[bool | None]:
        """Look chunks up, and load those that are there."""
        found = self.lookup(numbers)
        there = [number for number, is_there in zip(numbers, found, strict=True) if is_there]
        loaded = iter(self.load(there, version))
        return [next(loaded) if is_there else False for is_there in found]

    def _bitmap(self, event_fd: int, query: Any) -> list[bool]:
        bitmaps: list[Any] = []

        def has_come() -> bool:
            bitmaps.append(query())
            return bitmaps[-1] is not None

        _wait(event_fd, has_come)
        return [bitmaps[-1].test(number) for number in range(len(bitmaps[-1]))]


MakeNode = Callable[..., Node]


def stored_in(node: Node, count: int) -> None:
    """Wait until a node has stored so many chunks in the shared tier."""
    until("the shared tier has them", lambda: node.tier["stores"] >= count)


def _wait(event_fd: int, has_come: Any) -> None:
    while not has_come():
        # As LMCache's controllers do.
        assert is_readable(event_fd, HANG_DEADLINE_S), "it hangs"
        os.eventfd_read(event_fd)
