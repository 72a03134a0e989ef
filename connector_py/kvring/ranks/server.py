"""The side of the owner: it loads chunks into segments, and tells readers where they are."""

import json
import logging
import mmap
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kvring._native import KvRingError, put_into_huge_pages
from kvring.engine_store import EngineStore
from kvring.forks import close_in_forks
from kvring.ranks import segments
from kvring.ranks.segments import REQUEST, address_of, offsets_of
from kvring.socket_peers import Line

__all__ = ["ReadServer"]

_logger = logging.getLogger(__name__)

# A reader that does not give a segment back in this time costs others a miss.
_SEGMENT_DEADLINE_S: Final = 5.0

# Prefix, keys, and lengths of the parts of all keys.
_Content = tuple[str, tuple[str, ...], tuple[int, ...]]
# The epoch, and of each key whether it is stored.
_Version = tuple[int, list[bool]]


@dataclass
class _Segment:
    number: int
    content: _Content | None = None
    # Of the content, when its load began.
    version: _Version | None = None
    # Of each key; None until the load of this task has completed.
    results: list[bool] | None = field(default_factory=list)
    task: int = 0
    key_count: int = 0
    # A thread waits for the task, and will have the results.
    is_awaited: bool = False
    # While there are some it is not loaded with other content.
    readers: int = 0


@dataclass
class _Connection:
    socket: socket.socket
    # Which the reader copies from.
    held: list[_Segment] = field(default_factory=list)
    # Which are being loaded for it, in the order of its requests; None where none was free.
    asked: deque[_Segment | None] = field(default_factory=deque)

    def answer(self, answer: Any) -> None:
        self.socket.sendall(json.dumps(answer).encode() + b"\n")


class ReadServer:
    """Answers readers for the owner of a store."""

    def __init__(self, store: EngineStore) -> None:
        """Serve on the owner's socket, until the store is closed.

        Raises:
            OSError: There is no memory for the segments.
        """
        self._store = store
        self._memory_fd = os.memfd_create("kvring-rank-reads", os.MFD_CLOEXEC)
        length_bytes = segments.SEGMENTS * segments.SEGMENT_BYTES
        os.ftruncate(self._memory_fd, length_bytes)
        try:
            # Drives move pages that lie here and there half as fast.
            put_into_huge_pages(self._memory_fd, length_bytes)
        except OSError as error:
            _logger.info("reads of other ranks go without huge pages: %s", error)
        self._memory = mmap.mmap(self._memory_fd, length_bytes)
        self._address = address_of(self._memory)
        store.register(self._address, len(self._memory))
        # The one that was loaded last stands last.
        self._segments = [_Segment(number) for number in range(segments.SEGMENTS)]
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        close_in_forks(self)
        # The socket lives as long as the store, and must not keep it.
        this = weakref.ref(self)

        def serve(connection: socket.socket) -> None:
            server = this()
            if server is not None:
                server.serve(connection)
            else:
                connection.close()

        store.connector.serve(REQUEST, serve)

    def forget(self, keys: Sequence[str]) -> None:
        """Let no reader get what was loaded of these keys: they are stored anew."""
        changed = set(keys)
        with self._changed:
            for segment in self._segments:
                if segment.content is not None and not changed.isdisjoint(segment.content[1]):
                    segment.content = None

    def close(self) -> None:
        """Hang up on all readers. Idempotent; the segments go with the last who has them."""
        with self._changed:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            if not self._is_closed:
                self._is_closed = True
                os.close(self._memory_fd)

    def close_in_fork(self) -> None:
        """Close what a fork has of the connections."""
        for connection in list(self._connections):
            connection.close()

    def serve(self, reader: socket.socket) -> None:
        """Answer one reader until it hangs up."""
        connection = _Connection(reader)
        try:
            with self._changed:
                if self._is_closed:
                    return
                self._connections.add(reader)
                # With the lock: after a close the number may be another file's.
                socket.send_fds(reader, [b"{}\n"], [self._memory_fd])
            reader.settimeout(None)
            line = Line(reader)
            while True:
                # What was asked ahead is loaded meanwhile.
                if connection.asked and not line.is_there():
                    self._answer_load(connection)
                elif request := line.read():
                    self._take(connection, json.loads(request))
                else:
                    break
        except Exception as error:  # noqa: BLE001 - whatever is asked, others are answered
            # It went, or asked for what there is not, or the store went.
            _logger.debug("a reader is hung up on: %s", error)
        finally:
            # First: what it copies from now on does not count.
            with suppress(OSError):
                reader.shutdown(socket.SHUT_RDWR)
            loading = [segment for segment in connection.asked if segment is not None]
            for segment in loading:
                self._wait_for(segment)
            with self._changed:
                self._connections.discard(reader)
                for segment in (*connection.held, *loading):
                    segment.readers -= 1
                self._changed.notify_all()
            reader.close()

    def _take(self, connection: _Connection, request: dict[str, Any]) -> None:
        """Take up a request. Loads are answered when they have completed, in their order."""
        if "done" in request:
            with self._changed:
                numbers = [segment.number for segment in connection.held]
                connection.held.pop(numbers.index(request["done"])).readers -= 1
                self._changed.notify_all()
            return
        if "load" in request:
            prefix, keys, lengths_bytes = request["load"]
            content = (prefix, tuple(keys), tuple(lengths_bytes))
            # Who waits has none: else readers would wait for each other.
            has_some = bool(connection.held or connection.asked)
            connection.asked.append(self._begin(content, waits=not has_some))
            return
        while connection.asked:
            self._answer_load(connection)
        if "exists" in request:
            connection.answer(self._store.tasks.exists(*request["exists"]))
        else:
            connection.answer(self._store.tasks.count_leading(*request["count_leading"]))

    def _answer_load(self, connection: _Connection) -> None:
        segment = connection.asked[0]
        is_loaded = segment is not None and self._wait_for(segment)
        connection.asked.popleft()
        if segment is None:
            connection.answer([None, []])
        elif is_loaded:
            connection.held.append(segment)
            connection.answer([segment.number, segment.results])
        else:
            with self._changed:
                segment.readers -= 1
            connection.answer([None, []])

    def _begin(self, content: _Content, *, waits: bool) -> _Segment | None:
        """Return a segment that has or gets this content; None if none gets free."""
        with self._changed:
            deadline_s = time.monotonic() + (_SEGMENT_DEADLINE_S if waits else 0.0)
            while True:
                version = self._version_of(content)
                same = [one for one in self._segments if one.content == content]
                if same and same[0].version == version:
                    same[0].readers += 1
                    return same[0]
                for stale in same:
                    stale.content = None
                free = [one for one in self._segments if not one.readers]
                if free:
                    break
                if not self._changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    return None
            segment = free[0]
            segment.content = None
            segment.task = self._submit(segment.number, content)
            # The load may be of an epoch that began after the version was read.
            if self._store.connector.epoch() == version[0]:
                segment.content = content
            segment.version, segment.key_count = version, len(content[1])
            segment.results, segment.is_awaited, segment.readers = None, False, 1
            self._segments.sort(key=lambda one: one is segment)
            return segment

    def _version_of(self, content: _Content) -> _Version:
        """Return what changes when a key is removed, or an epoch begins.

        A key that is stored anew has the same version: `forget()` is for that.
        """
        prefix, keys, lengths_bytes = content
        parts = len(lengths_bytes) // max(len(keys), 1)
        stored = self._store.tasks.holds(prefix, list(keys), parts)
        return self._store.connector.epoch(), stored

    def _submit(self, number: int, content: _Content) -> int:
        prefix, keys, lengths_bytes = content
        start = self._address + number * segments.SEGMENT_BYTES
        addresses = [start + offset for offset in offsets_of(lengths_bytes)]
        if addresses and addresses[-1] + lengths_bytes[-1] > start + segments.SEGMENT_BYTES:
            raise ValueError("a reader asks for more than a segment holds")
        return self._store.tasks.load(prefix, list(keys), addresses, list(lengths_bytes))

    def _wait_for(self, segment: _Segment) -> bool:
        """Wait until a segment is loaded; false if another waits for the drive, and that too long.

        Whoever comes first waits for the task: a reader may have asked for others before, and is
        not there yet.
        """
        with self._changed:
            if segment.results is not None:
                return True
            if segment.is_awaited:
                deadline_s = segments.ANSWER_DEADLINE_S / 2
                return self._changed.wait_for(lambda: segment.results is not None, deadline_s)
            segment.is_awaited = True
        try:
            _, results, code, error, _ = self._store.tasks.wait(segment.task)
            self._store.note(code, error)
        except KvRingError as refusal:
            results = [False] * segment.key_count
            self._store.note_refusal(refusal)
        with self._changed:
            segment.results = results
            if not all(results):
                segment.content = None
            self._changed.notify_all()
        return True
