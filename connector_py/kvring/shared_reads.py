"""Reads of a store by other processes of this machine: ranks of a model that all have the same KV.

The owner of the store loads chunks into segments of memory that readers have mapped, and each
reader copies them into memory of its own. Readers that ask for the same chunks get the same
segment: the drive reads them once. They ask on the owner's socket (owner_socket.py), in JSON.
"""

import ctypes
import json
import logging
import mmap
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvring._native import KvRingError
from kvring.engine_store import EngineStore
from kvring.owner_socket import Line, connect

__all__ = ["MOST_PAGE_BYTES", "ReadServer", "Reader"]

_logger = logging.getLogger(__name__)

REQUEST: Final = "share reads"

_SEGMENT_BYTES: Final = 32 << 20
_SEGMENTS: Final = 8
MOST_PAGE_BYTES: Final = _SEGMENT_BYTES
_BLOCK_BYTES: Final = 4096

# A reader that does not give a segment back in this time costs others a miss.
_SEGMENT_DEADLINE_S: Final = 5.0
# Of an answer; a load is answered when the drive is done with it.
_ANSWER_DEADLINE_S: Final = 60.0
_RECONNECT_PAUSE_S: Final = 0.5

# Prefix, keys, and lengths of the parts of all keys.
_Content = tuple[str, tuple[str, ...], tuple[int, ...]]


@dataclass
class _Segment:
    number: int
    content: _Content | None = None
    # Of each key; None while it is loaded.
    results: list[bool] | None = field(default_factory=list)
    readers: int = 0


class ReadServer:
    """Answers readers for the owner of a store."""

    def __init__(self, store: EngineStore) -> None:
        """Serve on the owner's socket, until the store is closed.

        Raises:
            OSError: There is no memory for the segments.
        """
        self._store = store
        self._memory_fd = os.memfd_create("kvring-shared-reads", os.MFD_CLOEXEC)
        os.ftruncate(self._memory_fd, _SEGMENTS * _SEGMENT_BYTES)
        self._memory = mmap.mmap(self._memory_fd, _SEGMENTS * _SEGMENT_BYTES)
        self._address = _address_of(self._memory)
        store.register(self._address, len(self._memory))
        # The one that was loaded last stands last.
        self._segments = [_Segment(number) for number in range(_SEGMENTS)]
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        _all.add(self)
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

    def forget_all(self) -> None:
        """Let no reader get anything that was loaded before."""
        with self._changed:
            for segment in self._segments:
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
        """Close what a fork has of the connections; no lock, which another thread may have held."""
        for connection in list(self._connections):
            # Closed alone it would stay open for the one who reads its lines.
            with suppress(OSError):
                os.close(connection.detach())

    def serve(self, connection: socket.socket) -> None:
        """Answer one reader until it hangs up."""
        held: list[_Segment] = []
        try:
            with self._changed:
                if self._is_closed:
                    return
                self._connections.add(connection)
                # With the lock: after a close the number may be another file's.
                socket.send_fds(connection, [b"{}\n"], [self._memory_fd])
            connection.settimeout(None)
            line = Line(connection)
            while request := line.read():
                self._answer(connection, json.loads(request), held)
        except Exception as error:  # noqa: BLE001 - whatever is asked, others are answered
            # It went, or asked for what there is not, or the store went.
            _logger.debug("a reader is hung up on: %s", error)
        finally:
            # First: what it copies from now on does not count.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            with self._changed:
                self._connections.discard(connection)
                for segment in held:
                    segment.readers -= 1
                self._changed.notify_all()
            connection.close()

    def _answer(
        self, connection: socket.socket, request: dict[str, Any], held: list[_Segment]
    ) -> None:
        tasks = self._store.tasks
        answer: Any
        if "done" in request:
            with self._changed:
                numbers = [segment.number for segment in held]
                held.pop(numbers.index(request["done"])).readers -= 1
                self._changed.notify_all()
            return
        if "load" in request:
            prefix, keys, lengths_bytes = request["load"]
            # Who waits holds none: else readers would wait for each other.
            content = (prefix, tuple(keys), tuple(lengths_bytes))
            segment = self._loaded(content, waits=not held)
            if segment is None:
                answer = [None, []]
            else:
                held.append(segment)
                answer = [segment.number, segment.results]
        elif "exists" in request:
            answer = tasks.exists(*request["exists"])
        else:
            answer = tasks.count_leading(*request["count_leading"])
        connection.sendall(json.dumps(answer).encode() + b"\n")

    def _loaded(self, content: _Content, *, waits: bool) -> _Segment | None:
        """Return a segment with this content, for one more reader; None if none gets free."""
        with self._changed:
            deadline_s = time.monotonic() + (_SEGMENT_DEADLINE_S if waits else 0.0)
            while True:
                same = [one for one in self._segments if one.content == content]
                if same:
                    return self._when_loaded(same[0])
                free = [one for one in self._segments if not one.readers]
                if free:
                    segment = free[0]
                    break
                if not self._changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    return None
            segment.content, segment.results, segment.readers = content, None, 1
            self._segments.sort(key=lambda one: one is segment)
        results: list[bool] | None = None
        try:
            results = self._load(segment.number, content)
        finally:
            with self._changed:
                if results is None:
                    # This reader gets none; others that wait for the segment have misses.
                    segment.readers -= 1
                    results = [False] * len(content[1])
                segment.results = results
                if not all(results):
                    segment.content = None
                self._changed.notify_all()
        return segment

    def _when_loaded(self, segment: _Segment) -> _Segment | None:
        """Wait for what another reader has loaded; None if the drive does not answer in time."""
        segment.readers += 1
        is_loaded = self._changed.wait_for(
            lambda: segment.results is not None, _ANSWER_DEADLINE_S / 2
        )
        if not is_loaded:
            segment.readers -= 1
        return segment if is_loaded else None

    def _load(self, number: int, content: _Content) -> list[bool]:
        prefix, keys, lengths_bytes = content
        start = self._address + number * _SEGMENT_BYTES
        addresses = [start + offset for offset in _offsets(lengths_bytes)]
        if addresses and addresses[-1] + lengths_bytes[-1] > start + _SEGMENT_BYTES:
            raise ValueError("a reader asks for more than a segment holds")
        task = self._store.tasks.load(prefix, list(keys), addresses, list(lengths_bytes))
        _, results, error, _ = self._store.tasks.wait(task)
        self._store.note(error)
        return results


class Reader:
    """A store that another process of this machine owns. Where none does, all is a miss.

    Several threads may use it.
    """

    def __init__(self, path: Path, index_path: Path | None) -> None:
        """Know where the store is; it is asked when something is to be read."""
        self._where = (path, index_path)
        self._process_id = os.getpid()
        _all.add(self)
        self._of_thread = threading.local()
        # Those of threads that have ended go with them.
        self._links: weakref.WeakSet[_Link] = weakref.WeakSet()
        self._links_lock = threading.Lock()
        self._next_try_s = 0.0
        self._closed = threading.Event()
        self._has_told = False

    def exists(self, prefix: str, keys: list[str], parts: int) -> list[bool]:
        """Say of each key whether it is stored, and lease it."""
        answer = self._ask({"exists": [prefix, keys, parts]})
        return [False] * len(keys) if answer is None else answer

    def count_leading(self, prefix: str, keys: list[str], parts: int) -> int:
        """Return how many leading keys are stored, and lease them."""
        return self._ask({"count_leading": [prefix, keys, parts]}) or 0

    def load(
        self, prefix: str, keys: list[str], addresses: list[int], lengths_bytes: list[int]
    ) -> list[bool]:
        """Load into memory; say of each key whether it is there now, whole."""
        results = [False] * len(keys)
        link = self._link()
        if link is None or not keys:
            return results
        parts = len(addresses) // len(keys)
        pieces = list(_pieces(lengths_bytes, parts)) if parts else []
        copied: list[tuple[int, int, list[bool]]] = []
        requests = [
            {"load": [prefix, keys[first:end], lengths_bytes[first * parts : end * parts]]}
            for first, end in pieces
        ]
        try:
            if requests:
                link.send(requests[0])
            for number, (first, end) in enumerate(pieces):
                segment, loaded = link.receive()
                if segment is None and number:
                    # None was free as long as this reader held one.
                    link.send(requests[number])
                    segment, loaded = link.receive()
                # The owner loads the next piece while this one is copied.
                if number + 1 < len(requests):
                    link.send(requests[number + 1])
                if segment is None:
                    continue
                span = slice(first * parts, end * parts)
                link.copy(segment, addresses[span], lengths_bytes[span])
                link.send({"done": segment})
                copied.append((first, end, loaded))
            # An answer that comes now says that the owner was there all the time, and kept the
            # segments as they were while they were copied.
            if copied:
                link.send({"count_leading": [prefix, [], 1]})
                link.receive()
            for first, end, loaded in copied:
                results[first:end] = loaded
        except (OSError, ValueError) as error:
            self._drop(link, error)
        return results

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._closed.set()
        with self._links_lock:
            links = list(self._links)
        for link in links:
            link.close()

    def close_in_fork(self) -> None:
        """Close what a fork has of the connections."""
        for link in list(self._links):
            link.close_in_fork()

    def _ask(self, request: dict[str, Any]) -> Any:
        link = self._link()
        if link is None:
            return None
        try:
            link.send(request)
            return link.receive()
        except (OSError, ValueError) as error:
            self._drop(link, error)
            return None

    def _link(self) -> "_Link | None":
        # A connection that a fork shared would get the answers of the other.
        if self._closed.is_set() or os.getpid() != self._process_id:
            return None
        link: _Link | None = getattr(self._of_thread, "link", None)
        if link is not None or time.monotonic() < self._next_try_s:
            return link
        try:
            link = _Link(*self._where)
        except (OSError, ValueError, KvRingError) as error:
            self._tell(error)
            return None
        self._of_thread.link = link
        with self._links_lock:
            self._links.add(link)
        self._has_told = False
        if self._closed.is_set():
            # Since it was looked at.
            link.close()
        return link

    def _drop(self, link: "_Link", error: Exception) -> None:
        link.close()
        with self._links_lock:
            self._links.discard(link)
        self._of_thread.link = None
        self._tell(error)

    def _tell(self, error: Exception) -> None:
        self._next_try_s = time.monotonic() + _RECONNECT_PAUSE_S
        if not self._has_told and not self._closed.is_set():
            self._has_told = True
            _logger.warning(
                "%s: its owner does not answer, and all is a miss until it does: %s",
                self._where[0],
                str(error) or type(error).__name__,
            )


class _Link:
    """A connection to an owner, and the memory of its segments."""

    def __init__(self, path: Path, index_path: Path | None) -> None:
        self._connection = connect(path, index_path, {"ask": REQUEST})
        try:
            self._connection.settimeout(_ANSWER_DEADLINE_S)
            hello, descriptors, _, _ = socket.recv_fds(self._connection, 4096, 1)
            if not descriptors:
                raise ConnectionError(f"the owner shares no reads {hello.decode(errors='replace')}")
            try:
                size_bytes = os.fstat(descriptors[0]).st_size
                self._memory = mmap.mmap(descriptors[0], size_bytes, prot=mmap.PROT_READ)
            finally:
                os.close(descriptors[0])
        except BaseException:
            self._connection.close()
            raise
        self._address = _address_of(self._memory)
        self._line = Line(self._connection)
        weakref.finalize(self, _let_go, self._connection, self._line).atexit = False

    def send(self, request: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(request).encode() + b"\n")

    def receive(self) -> Any:
        line = self._line.read()
        if not line:
            raise ConnectionError("the owner has hung up")
        return json.loads(line)

    def copy(self, segment: int, addresses: list[int], lengths_bytes: list[int]) -> None:
        start = self._address + segment * _SEGMENT_BYTES
        offsets = _offsets(lengths_bytes)
        for address, length_bytes, offset in zip(addresses, lengths_bytes, offsets, strict=True):
            # Other Python threads run meanwhile.
            ctypes.memmove(address, start + offset, length_bytes)

    def close_in_fork(self) -> None:
        _let_go(self._connection, self._line)

    def close(self) -> None:
        # Its memory goes with it: a thread may be copying.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _let_go(connection: socket.socket, line: Line) -> None:
    """Close what this process has of a connection: a fork's end is no end of the other's."""
    line.close()
    connection.close()


# Those of this process. A fork has their connections, which would keep them open for the other end.
_all: "weakref.WeakSet[ReadServer | Reader]" = weakref.WeakSet()


def _close_in_fork() -> None:
    for one in list(_all):
        one.close_in_fork()


os.register_at_fork(after_in_child=_close_in_fork)


def _address_of(memory: mmap.mmap) -> int:
    address: int = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    return address


def _offsets(lengths_bytes: Sequence[int]) -> list[int]:
    """Return where in a segment each part lies, in whole blocks."""
    offsets, end = [], 0
    for length_bytes in lengths_bytes:
        offsets.append(end)
        end += -(-length_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    return offsets


def _pieces(lengths_bytes: list[int], parts: int) -> Iterator[tuple[int, int]]:
    """Split keys into runs that a segment holds, each as long as can be; leave out longer keys."""
    first = size_bytes = 0
    count = len(lengths_bytes) // parts
    for key in range(count):
        own = lengths_bytes[key * parts : (key + 1) * parts]
        own_bytes = sum(-(-length_bytes // _BLOCK_BYTES) * _BLOCK_BYTES for length_bytes in own)
        if size_bytes + own_bytes > _SEGMENT_BYTES:
            if first < key:
                yield first, key
            first, size_bytes = key, 0
        if own_bytes > _SEGMENT_BYTES:
            first = key + 1
        else:
            size_bytes += own_bytes
    if first < count:
        yield first, count
