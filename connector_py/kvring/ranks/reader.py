"""The side of a reader: it asks the owner, and copies from segments into memory of its own."""

import ctypes
import heapq
import json
import logging
import mmap
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kvring._native import KvRingError
from kvring.forks import close_in_forks
from kvring.owner_requests import connect
from kvring.ranks import segments
from kvring.ranks.segments import REQUEST, address_of, offsets_of, pieces_of
from kvring.socket_peers import Line

__all__ = ["Reader"]

_logger = logging.getLogger(__name__)

_RECONNECT_PAUSE_S: Final = 0.5
# Pieces that the owner loads while this one is copied.
_IN_FLIGHT: Final = 2


class Reader:
    """A store that another process of this machine owns. Where none does, all is a miss.

    Several threads may use it.
    """

    def __init__(self, path: Path, index_path: Path | None) -> None:
        """Know where the store is; it is asked when something is to be read."""
        self._where = (path, index_path)
        self._process_id = os.getpid()
        close_in_forks(self)
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
        parts = len(addresses) // len(keys) if keys else 0
        if link is None or not parts:
            return results
        pieces = list(pieces_of(lengths_bytes, parts))
        spans = [slice(first * parts, end * parts) for first, end in pieces]
        requests = [
            {"load": [prefix, keys[first:end], lengths_bytes[span]]}
            for (first, end), span in zip(pieces, spans, strict=True)
        ]
        copied: list[tuple[int, list[bool]]] = []
        with self._asking(link):
            for number, segment, loaded in _answered(link, requests):
                link.copy(segment, addresses[spans[number]], lengths_bytes[spans[number]])
                copied.append((number, loaded))
            # An answer that comes now says that the owner was there all the time, and kept the
            # segments as they were while they were copied.
            if copied:
                link.send({"count_leading": [prefix, [], 1]})
                link.receive()
            for number, loaded in copied:
                results[slice(*pieces[number])] = loaded
        return results

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._closed.set()
        with self._links_lock:
            links = list(self._links)
        for link in links:
            # A thread may be about to wait on its descriptor, whose number another file would get.
            link.hang_up()

    def close_in_fork(self) -> None:
        """Close what a fork has of the connections."""
        for link in list(self._links):
            link.close_in_fork()

    def _ask(self, request: dict[str, Any]) -> Any:
        link = self._link()
        if link is None:
            return None
        answer = None
        with self._asking(link):
            link.send(request)
            answer = link.receive()
        return answer  # noqa: RET504 - the block may end without one

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
            link.hang_up()
        return link

    @contextmanager
    def _asking(self, link: "_Link") -> Iterator[None]:
        """Drop the connection after any error, and raise again what is none of the connection's.

        An answer that is still to come would be taken for that of a later request.
        """
        try:
            yield
        except (OSError, ValueError) as error:
            self._drop(link, error)
        except BaseException as error:
            self._drop(link, error)
            raise

    def _drop(self, link: "_Link", error: BaseException) -> None:
        link.close()
        with self._links_lock:
            self._links.discard(link)
        self._of_thread.link = None
        self._tell(error)

    def _tell(self, error: BaseException) -> None:
        self._next_try_s = time.monotonic() + _RECONNECT_PAUSE_S
        if not self._has_told and not self._closed.is_set():
            self._has_told = True
            _logger.warning(
                "%s: its owner does not answer; all lookups are misses until it does: %s",
                self._where[0],
                str(error) or type(error).__name__,
            )


class _Link:
    """A connection to an owner, and the memory of its segments."""

    def __init__(self, path: Path, index_path: Path | None) -> None:
        self._connection = connect(path, index_path, {"ask": REQUEST})
        try:
            self._connection.settimeout(segments.ANSWER_DEADLINE_S)
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
        self._address = address_of(self._memory)
        self._line = Line(self._connection)
        weakref.finalize(self, self._connection.close).atexit = False

    def send(self, request: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(request).encode() + b"\n")

    def receive(self) -> Any:
        line = self._line.read()
        if not line:
            raise ConnectionError("the owner has hung up")
        return json.loads(line)

    def copy(self, segment: int, addresses: list[int], lengths_bytes: list[int]) -> None:
        start = self._address + segment * segments.SEGMENT_BYTES
        offsets = offsets_of(lengths_bytes)
        for address, length_bytes, offset in zip(addresses, lengths_bytes, offsets, strict=True):
            # Other Python threads run meanwhile.
            ctypes.memmove(address, start + offset, length_bytes)

    def close_in_fork(self) -> None:
        """Close what a fork has of it: its end is no end of the other's."""
        self._connection.close()

    def hang_up(self) -> None:
        """End the connection; its descriptor and its memory go with it."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection, which no other thread uses."""
        self.hang_up()
        self._connection.close()


def _answered(link: _Link, requests: list[dict[str, Any]]) -> Iterator[tuple[int, int, list[bool]]]:
    """Ask for pieces, some of them ahead; yield the number, segment and results of each.

    A segment is given back when the next one is asked for. What the owner has no segment for, and
    what is not stored, is left out.
    """
    # A heap: those that were refused come again before later ones.
    to_ask = list(range(len(requests)))
    asked: deque[tuple[int, bool]] = deque()
    is_refused = False

    def ask(*, alone: bool = False) -> None:
        number = heapq.heappop(to_ask)
        link.send(requests[number])
        asked.append((number, alone))

    def ask_ahead() -> None:
        while to_ask and not is_refused and len(asked) < _IN_FLIGHT:
            ask()

    while to_ask or asked:
        if not asked:
            # It has no segment: the owner waits for one.
            is_refused = False
            ask(alone=True)
            ask_ahead()
        number, was_alone = asked.popleft()
        segment, loaded = link.receive()
        if segment is None:
            if not was_alone:
                heapq.heappush(to_ask, number)
                is_refused = True
            continue
        ask_ahead()
        yield number, segment, loaded
        link.send({"done": segment})
