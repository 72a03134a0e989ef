"""A tier that many nodes share, behind a store: asked beside it, and never waited for too long."""

import ctypes
import heapq
import itertools
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.memory_management import TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd

from kvring.lmcache.variants import Variants
from kvring.shared_tier.buffers import Buffers, is_marked, mark
from kvring.shared_tier.connection import Connection
from kvring.shared_tier.inbox import Inbox
from kvring.shared_tier.link import Link
from kvring.shared_tier.options import SharedOptions
from kvring.shared_tier.sidecars import UNCHECKED, Sidecar

__all__ = ["SharedTier"]

_END_DEADLINE_S: Final = 30.0

# Chunks of a batch: their numbers in it, and the buffers through which they go.
_Group = list[tuple[int, TensorMemoryObj]]
_Answer = Callable[[list[Any]], None]
_Keep = Callable[[list[ObjectKey], list[TensorMemoryObj]], None]


@dataclass
class _Request:
    """What somebody waits for, until it is answered or late."""

    count: int
    answer: _Answer
    deadline_s: float
    is_answered: bool = False

    def finish(self, results: list[Any]) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.answer(results)

    def miss(self) -> None:
        self.finish([None] * self.count)


class SharedTier:
    """Asks a shared tier, in a thread that waits for nothing but its next deadline.

    As long as the tier does not answer, and where it is late, all is a miss.
    """

    def __init__(
        self, options: SharedOptions, buffers: Buffers, variants: Variants, keep: _Keep
    ) -> None:
        """Begin to connect.

        Args:
            options: What it is.
            buffers: Through which everything goes.
            variants: What chunks mean, on all nodes.
            keep: Told what was loaded; it gives the objects back to `buffers`.
        """
        self.name = options.name
        self.counts: Counter[str] = Counter()
        self._options = options
        self._buffers = buffers
        self._variants = variants
        self._keep = keep
        self._late: list[tuple[float, int, _Request]] = []
        self._numbers = itertools.count()
        self._inbox = Inbox()
        self._link = Link(options, buffers, variants, self.counts, self._inbox.post)
        self._thread = threading.Thread(target=self._run, daemon=True, name="kvring-shared-tier")
        self._thread.start()

    @property
    def is_answering(self) -> bool:
        """Whether it answered the last question in time."""
        return self._link.is_answering

    @property
    def buffered_bytes(self) -> int:
        """Memory of `shared_buffer` that is in use."""
        return self._buffers.taken_bytes

    def lookup(
        self,
        keys: list[ObjectKey],
        layouts: dict[int, Any],
        answer: Callable[[list[Sidecar | None]], None],
    ) -> None:
        """Answer with the sidecar of each key that is there; in time, or that none is."""
        ask = partial(self._lookup, keys, layouts)
        self._ask(ask, len(keys), answer, self._options.limits.lookup_deadline_s)

    def load(
        self,
        keys: list[ObjectKey],
        sidecars: list[Sidecar],
        objects: list[Any],
        answer: Callable[[list[bool]], None],
    ) -> None:
        """Load what fits its sidecar; say of each key whether it is there now, in time.

        Nothing is written there after the answer.
        """
        ask = partial(self._load, keys, sidecars, objects)
        self._ask(ask, len(keys), answer, self._options.limits.load_deadline_s)

    def store(self, keys: list[ObjectKey], objects: list[Any], copied: Callable[[], None]) -> None:
        """Store copies of memory, as far as there is room for them; say when they are made."""
        if not self.is_answering:
            self.counts["skipped_stores"] += len(keys)
            copied()
            return
        if not self._inbox.post(
            partial(self._store, keys, objects, self._variants.epoch(), copied)
        ):
            copied()

    def close(self) -> None:
        """End; all that is asked for is a miss. Idempotent."""
        self._inbox.close()
        self._thread.join(_END_DEADLINE_S)

    def _ask(
        self, ask: Callable[[_Request], None], count: int, answer: _Answer, deadline_s: float
    ) -> None:
        request = _Request(count, answer, deadline_s)
        late_s = time.monotonic() + deadline_s

        def begin() -> None:
            heapq.heappush(self._late, (late_s, next(self._numbers), request))
            if self._link.connection is None:
                request.miss()
            else:
                ask(request)

        if not self.is_answering or not self._inbox.post(begin):
            request.miss()

    # --- in its thread ---

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._inbox.descriptor, select.POLLIN)
        try:
            while not self._inbox.is_closed:
                poll.poll(self._pause_s() * 1000)
                consume_fd(self._inbox.descriptor)
                self._take_turn()
        finally:
            # What was asked for by now is a miss; a connection that was made by now is ended.
            self._inbox.close()
            self._lose("", is_over=True)
            self._inbox.work_off()
            self._lose("", is_over=True)

    def _take_turn(self) -> None:
        try:
            why = self._work()
        except Exception as error:  # noqa: BLE001 - an eventfd of LMCache's may be closed by now
            why = str(error) or type(error).__name__
        if why:
            self._lose(why)

    def _pause_s(self) -> float:
        if self._inbox:
            return 0.0
        nearest_s = self._link.next_s()
        if self._late:
            nearest_s = min(nearest_s, self._late[0][0])
        return max(nearest_s - time.monotonic(), 0.0)

    def _work(self) -> str:
        """Do what there is to do; return why the connection is of no use, if it is of none."""
        self._inbox.work_off()
        now_s = time.monotonic()
        while self._late and (self._late[0][0] <= now_s or self._late[0][2].is_answered):
            request = heapq.heappop(self._late)[2]
            if not request.is_answered:
                self.counts["late"] += 1
                # First: the answer may cause the next lookup at once.
                self._link.doubt(request.deadline_s)
                request.miss()
        return self._link.work()

    def _lose(self, why: str, *, is_over: bool = False) -> None:
        self._link.lose(why, is_over=is_over)
        for _, _, request in self._late:
            request.miss()
        self._late.clear()

    def _lookup(self, keys: list[ObjectKey], layouts: dict[int, Any], request: _Request) -> None:
        connection = self._link.connection
        assert connection is not None

        def found(sidecars: list[Sidecar | None]) -> None:
            if not request.is_answered:
                self.counts["found"] += len(sidecars) - sidecars.count(None)
                request.finish(sidecars)

        self.counts["lookups"] += len(keys)
        connection.lookup(keys, layouts, found)

    def _load(
        self,
        keys: list[ObjectKey],
        sidecars: list[Sidecar],
        objects: list[Any],
        request: _Request,
    ) -> None:
        connection = self._link.connection
        assert connection is not None
        buffers = self._take_buffers(connection, keys, sidecars, objects)
        groups, epoch = _by_length(buffers), self._variants.epoch()
        results, waiting = [False] * len(keys), len(groups)
        if not groups:
            request.miss()

        def loaded(group: _Group, are_there: list[bool]) -> None:
            nonlocal waiting
            there: _Group = []
            for (number, buffer), is_there in zip(group, are_there, strict=True):
                # LMCache's `s3` says that it has loaded what was shorter.
                if not is_there or is_marked(buffer):
                    self._buffers.give_back([buffer])
                    continue
                there.append((number, buffer))
                if not request.is_answered:
                    size_bytes = buffer.get_size()
                    # Other Python threads run meanwhile.
                    ctypes.memmove(objects[number].data_ptr, buffer.data_ptr, size_bytes)
                    self.counts["loaded_bytes"] += size_bytes
                    results[number] = True
            waiting -= 1
            if waiting == 0:
                if not request.is_answered:
                    self._link.trust()
                request.finish(results)
            # One that came too late, too: it is there the next time, unless that is another epoch.
            if self._variants.epoch() != epoch:
                self._buffers.give_back(_memory(there))
            elif there:
                self._keep([keys[number] for number, _ in there], [one for _, one in there])

        for group in groups:
            for _, buffer in group:
                mark(buffer)
            own_keys = [keys[number] for number, _ in group]
            own_sidecars = [sidecars[number] for number, _ in group]
            connection.load(own_keys, own_sidecars, _memory(group), partial(loaded, group))

    def _take_buffers(
        self,
        connection: Connection,
        keys: list[ObjectKey],
        sidecars: list[Sidecar],
        objects: list[Any],
    ) -> list[TensorMemoryObj | None]:
        """Return buffers for objects, as far as what is stored has their length."""
        buffers: list[TensorMemoryObj | None] = []
        for key, sidecar, one in zip(keys, sidecars, objects, strict=True):
            if sidecar.length_bytes not in (one.get_size(), UNCHECKED.length_bytes):
                connection.note_mismatch(key)
                buffers.append(None)
                continue
            buffers.append(self._buffers.take(one.get_size(), one))
            self.counts["skipped_loads"] += buffers[-1] is None
        return buffers

    def _store(
        self,
        keys: list[ObjectKey],
        objects: list[Any],
        epoch: int,
        copied: Callable[[], None],
    ) -> None:
        connection = self._link.connection if self._variants.epoch() == epoch else None
        buffers: list[TensorMemoryObj | None] = []
        try:
            keys, objects, variants = self._variants.of_stored(keys, objects)
            for one in objects:
                buffer = None if connection is None else self._buffers.take(one.get_size(), one)
                buffers.append(buffer)
                if buffer is not None:
                    ctypes.memmove(buffer.data_ptr, one.data_ptr, buffer.get_size())
            # A status that is asked for after the answer has them.
            self.counts["skipped_stores"] += buffers.count(None)
        finally:
            copied()
        if connection is None:
            return

        def stored(group: _Group, is_stored: bool) -> None:
            self.counts["stores" if is_stored else "failed_stores"] += len(group)
            self._buffers.give_back(_memory(group))
            if not is_stored:
                # It may be gone.
                self._link.check()

        for group in _by_length(buffers):
            own_keys = [keys[number] for number, _ in group]
            own_variants = [variants[number] for number, _ in group]
            connection.store(own_keys, own_variants, _memory(group), partial(stored, group))


def _by_length(buffers: list[TensorMemoryObj | None]) -> list[_Group]:
    """Return the numbers and buffers of each length: LMCache's connectors take one in a batch."""
    groups: dict[int, _Group] = {}
    for number, buffer in enumerate(buffers):
        if buffer is not None:
            groups.setdefault(buffer.get_size(), []).append((number, buffer))
    return list(groups.values())


def _memory(group: _Group) -> list[TensorMemoryObj]:
    return [buffer for _, buffer in group]
