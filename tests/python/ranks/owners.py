"""An owner of a store that serves readers, and what it stores."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvring.engine_store import EngineStore
from kvring.ranks import ReadServer
from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S, KIB, make_memory

PREFIX = "test/model@00000000"
KEYS = [f"key-{number}" for number in range(24)]
# Most tests have few and short segments, so that they run out.
SEGMENTS = 3
SEGMENT_BYTES = 64 * KIB
FEW_SEGMENTS = pytest.mark.usefixtures("_few_segments")


class Owner:
    """An open store that serves readers."""

    def __init__(self, path: Path | str, capacity: int | str = CAPACITY_BYTES) -> None:
        """Open it."""
        self.store = EngineStore("the test", {"path": str(path), "capacity": capacity})
        self.server = ReadServer(self.store)

    def put(self, keys: Sequence[str], lengths: Sequence[int], version: int = 0) -> None:
        """Store each key in parts of these lengths, and have readers forget what was there."""
        memory = Memory(len(keys) * list(lengths))
        parts = [(key, part) for key in keys for part in range(len(lengths))]
        for (key, part), block in zip(parts, memory.blocks, strict=True):
            block[:] = content_of(key, part, len(block), version)
        task = self.store.tasks.store(PREFIX, list(keys), memory.addresses, memory.lengths)
        assert self.store.tasks.wait(task)[1:3] == ([True] * len(keys), None)
        self.server.forget(keys)

    def delete_part(self, key: str, part: int) -> None:
        """Remove one of the chunks of a key."""
        chunk = f"{PREFIX}@{part:x}@{key}"
        task = self.store.connector.submit_batch_delete([chunk])
        assert self.store.tasks.wait(task)[1] == [True]

    def reads(self) -> int:
        """Return how many bytes were read from the disk so far."""
        count: int = self.store.connector.stats()["read_bytes"]
        return count

    def in_use(self) -> list[int]:
        """Return how many readers each segment has that has some, in no order."""
        return [one.readers for one in self.server._segments if one.readers]

    def begun(self) -> set[str]:
        """Return the keys that segments have, or are loaded with."""
        contents = [one.content for one in self.server._segments]
        return {key for content in contents if content is not None for key in content[1]}

    def close(self) -> None:
        """Close it."""
        self.server.close()
        self.store.close()


class HeldLoads:
    """The tasks of an owner. Whoever waits for a load is held up until the test lets it end."""

    def __init__(self, owner: Owner) -> None:
        """Stand before the owner's tasks from now on; what was loaded before goes on."""
        self._tasks = owner.store.tasks
        self._first_keys: dict[int, str] = {}
        self._may_end: dict[str, threading.Event] = {}
        # The first keys of what was waited for, in this order.
        self.awaited: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tasks, name)

    def hold(self, *keys: str) -> None:
        """Hold up loads that begin with one of these keys."""
        self._may_end.update({key: threading.Event() for key in keys})

    def let_end(self, *keys: str) -> None:
        """Hold these up no more; none names all."""
        for key in keys or self._may_end:
            self._may_end[key].set()

    def load(self, prefix: str, keys: list[str], *memory: list[int]) -> int:
        """Begin a load."""
        task: int = self._tasks.load(prefix, keys, *memory)
        self._first_keys[task] = keys[0]
        return task

    def wait(self, task: int) -> Any:
        """Wait for a task, and until it may end."""
        key = self._first_keys.get(task)
        if key is not None:
            self.awaited.append(key)
        if key in self._may_end:
            assert self._may_end[key].wait(HANG_DEADLINE_S), f"{key} is held up for good"
        return self._tasks.wait(task)


class Memory:
    """Memory of these lengths, with some bytes around each block that nobody may write to."""

    FILL = 0xEE
    AROUND = 64

    def __init__(self, lengths: Sequence[int]) -> None:
        """Fill it."""
        self.lengths = list(lengths)
        self._all = make_memory(sum(lengths) + self.AROUND * (len(self.lengths) + 1))
        self._all[:] = bytes([self.FILL]) * len(self._all)
        base: int = np.frombuffer(self._all, dtype=np.uint8).ctypes.data
        self.blocks: list[memoryview] = []
        self.addresses: list[int] = []
        offset = self.AROUND
        for length in self.lengths:
            self.blocks.append(self._all[offset : offset + length])
            self.addresses.append(base + offset)
            offset += length + self.AROUND

    def is_intact_around(self) -> bool:
        """Say whether nothing but the blocks was written to."""
        outside = bytearray(self._all)
        offset = self.AROUND
        for length in self.lengths:
            outside[offset : offset + length] = bytes([self.FILL]) * length
            offset += length + self.AROUND
        return bytes(outside) == bytes([self.FILL]) * len(outside)


def content_of(key: str, part: int, length_bytes: int, version: int = 0) -> bytes:
    return random.Random(f"{key}/{part}/{version}").randbytes(length_bytes)
