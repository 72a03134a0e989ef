"""A tier that many nodes share, behind a store: asked beside it, and never waited for too long."""

import ctypes
import heapq
import itertools
import os
import select
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.memory_management import TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd

from kvring.lmcache.shared_buffers import Buffers, is_marked, mark
from kvring.lmcache.shared_link import Link
from kvring.lmcache.shared_options import SharedOptions

__all__ = ["SharedTier"]

_END_DEADLINE_S: Final = 30.0

# Chunks of a batch: their numbers in it, and the buffers through which they go.
_Group = list[tuple[int, TensorMemoryObj]]
_Answer = Callable[[list[bool]], None]
_Keep = Callable[[list[ObjectKey], list[TensorMemoryObj]], None]


@dataclass
class _Request:
    """What somebody waits for, until it is answered or late."""

    count: int
    answer: _Answer
    deadline_s: float
    is_answered: bool = False

    def finish(self, results: list[bool]) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.answer(results)

    def miss(self) -> None:
        self.finish([False] * self.count)


class SharedTier:
    """An adapter of LMCache in a thread of its own.

    As long as it does not answer, and where it is late, all is a miss.
    """

    def __init__(self, options: SharedOptions, buffers: Buffers, keep: _Keep) -> None:
        """Begin to connect.

        Args:
            options: What it is.
            buffers: Through which everything goes.
            keep: Told what was loaded; it gives the objects back to `buffers`.
        """
        self.name = options.name
        self.counts: Counter[str] = Counter()
        self._options = options
        self._buffers = buffers
        self._keep = keep
        self._late: list[tuple[float, int, _Request]] = []
        self._numbers = itertools.count()
        self._inbox: deque[Callable[[], None]] = deque()
        self._has_ended = False
        self._posting = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Not at the end: a thread that still connects then would write into another file.
        weakref.finalize(self, os.close, self._wake_fd)
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._link = Link(options, buffers, self.counts, self._do, self._poll)
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

    def lookup(self, keys: list[ObjectKey], layouts: dict[int, Any], answer: _Answer) -> None:
        """Say of each key whether it is there, and lock it; in time, or that it is not."""
        ask = partial(self._lookup, keys, layouts)
        self._ask(ask, len(keys), answer, self._options.limits.lookup_deadline_s)

    def load(self, keys: list[ObjectKey], objects: list[Any], answer: _Answer) -> None:
        """Load into memory; say of each key whether it is there now, in time, or that it is not.

        Nothing is written there after the answer.
        """
        ask = partial(self._load, keys, objects)
        self._ask(ask, len(keys), answer, self._options.limits.load_deadline_s)

    def store(self, keys: list[ObjectKey], objects: list[Any], copied: Callable[[], None]) -> None:
        """Store copies of memory, as far as there is room for them; say when they are made."""
        if not self.is_answering:
            self.counts["skipped_stores"] += len(keys)
            copied()
            return
        if not self._do(partial(self._store, keys, objects, copied)):
            copied()

    def unlock(self, keys: list[ObjectKey]) -> None:
        """Give locks of lookups back."""
        self._do(partial(self._unlock, keys))

    def close(self) -> None:
        """End; all that is asked for is a miss. Idempotent."""
        with self._posting:
            self._has_ended = True
        os.eventfd_write(self._wake_fd, 1)
        # An adapter that waits where it must not holds up nobody for ever.
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

        if not self.is_answering or not self._do(begin):
            request.miss()

    def _do(self, work: Callable[[], None]) -> bool:
        """Have its thread do something; say whether it still will."""
        with self._posting:
            if self._has_ended:
                return False
            self._inbox.append(work)
        os.eventfd_write(self._wake_fd, 1)
        return True

    # --- in its thread ---

    def _run(self) -> None:
        try:
            while not self._has_ended:
                self._take_turn()
        finally:
            # What was asked for by now is a miss; a connection that was made by now is ended.
            with self._posting:
                self._has_ended = True
            self._lose("", is_over=True)
            self._work_off()
            self._lose("", is_over=True)

    def _take_turn(self) -> None:
        try:
            for descriptor, _ in self._poll.poll(self._pause_s() * 1000):
                consume_fd(descriptor)
            why = self._work()
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
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
        self._work_off()
        if self._link.connection is not None:
            self._link.connection.take_results()
        now_s = time.monotonic()
        while self._late and (self._late[0][0] <= now_s or self._late[0][2].is_answered):
            request = heapq.heappop(self._late)[2]
            if not request.is_answered:
                self.counts["late"] += 1
                # First: the answer may cause the next lookup at once.
                self._link.doubt(request.deadline_s)
                request.miss()
        return self._link.work()

    def _work_off(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _lose(self, why: str, *, is_over: bool = False) -> None:
        self._link.lose(why, is_over=is_over)
        for _, _, request in self._late:
            request.miss()
        self._late.clear()

    def _lookup(self, keys: list[ObjectKey], layouts: dict[int, Any], request: _Request) -> None:
        connection = self._link.connection
        assert connection is not None

        def found(are_there: list[bool]) -> None:
            there = [key for key, is_there in zip(keys, are_there, strict=True) if is_there]
            if request.is_answered:
                connection.unlock(there)
                return
            self.counts["found"] += len(there)
            request.finish(are_there)

        self.counts["lookups"] += len(keys)
        connection.lookup(keys, layouts, found)

    def _unlock(self, keys: list[ObjectKey]) -> None:
        if self._link.connection is not None:
            self._link.connection.unlock(keys)

    def _load(self, keys: list[ObjectKey], objects: list[Any], request: _Request) -> None:
        connection = self._link.connection
        assert connection is not None
        buffers = [self._buffers.take(one.get_size()) for one in objects]
        self.counts["skipped_loads"] += buffers.count(None)
        groups = _by_length(buffers)
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
            # One that came too late, too: it is there the next time.
            if there:
                self._keep([keys[number] for number, _ in there], [one for _, one in there])

        for buffer in itertools.chain.from_iterable(map(_memory, groups)):
            mark(buffer)
        self._submit(
            groups,
            lambda group, own: connection.load(own, _memory(group), partial(loaded, group)),
            keys,
        )

    def _store(self, keys: list[ObjectKey], objects: list[Any], copied: Callable[[], None]) -> None:
        connection = self._link.connection
        buffers: list[TensorMemoryObj | None] = []
        try:
            for one in objects:
                buffer = None if connection is None else self._buffers.take(one.get_size())
                buffers.append(buffer)
                if buffer is not None:
                    ctypes.memmove(buffer.data_ptr, one.data_ptr, buffer.get_size())
        finally:
            copied()
        self.counts["skipped_stores"] += buffers.count(None)
        if connection is None:
            return

        def stored(group: _Group, is_stored: bool) -> None:
            self.counts["stores" if is_stored else "failed_stores"] += len(group)
            self._buffers.give_back(_memory(group))
            if not is_stored:
                # It may be gone.
                self._link.check()

        self._submit(
            _by_length(buffers),
            lambda group, own: connection.store(own, _memory(group), partial(stored, group)),
            keys,
        )

    def _submit(
        self,
        groups: list[_Group],
        submit: Callable[[_Group, list[ObjectKey]], None],
        keys: list[ObjectKey],
    ) -> None:
        """Submit groups of chunks; what the adapter does not take has its buffers back."""
        submitted = 0
        try:
            for group in groups:
                submit(group, [keys[number] for number, _ in group])
                submitted += 1
        except BaseException:
            for group in groups[submitted:]:
                self._buffers.give_back(_memory(group))
            raise


def _by_length(buffers: list[TensorMemoryObj | None]) -> list[_Group]:
    """Return the numbers and buffers of each length: LMCache's `resp` takes one in a batch."""
    groups: dict[int, _Group] = {}
    for number, buffer in enumerate(buffers):
        if buffer is not None:
            groups.setdefault(buffer.get_size(), []).append((number, buffer))
    return list(groups.values())


def _memory(group: _Group) -> list[TensorMemoryObj]:
    return [buffer for _, buffer in group]
