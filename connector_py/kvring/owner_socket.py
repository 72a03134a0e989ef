"""The socket of an open store, on which its owner answers commands of this machine.

It listens where owner_address.py says, for the owner's user and root. A connection carries one
request and one answer, a line of JSON each.
"""

import json
import logging
import math
import os
import select
import signal
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvring._native import Connector, KvRingError, __version__
from kvring.forks import close_in_forks
from kvring.owner_address import SOCKET_NAME, at_file, is_socket, names
from kvring.owner_requests import LOOKS
from kvring.sampler import Sampler, stats_of
from kvring.socket_peers import OUT_OF_DESCRIPTORS, PAUSE_S, Line, peer_of

__all__ = ["OwnerSocket"]

_MOST_REQUEST_BYTES: Final = 64 << 10
_MOST_WAITING: Final = 16
# Of a request: one that does not come must not keep others waiting for longer.
_REQUEST_DEADLINE_S: Final = 5.0
# What is answered under the name of a directory, which anybody of the network namespace sees: to
# know that file takes no right to the store. A purge loses hits alone, and a dead disk takes it.
_ANSWERED_BY_NAME: Final = (*LOOKS, "purge")


class _Listener(NamedTuple):
    """For which path one listens, and whether those who ask have come to its file."""

    path: Path
    is_trusted: bool


_logger = logging.getLogger(__name__)


class OwnerSocket:
    """Answers for a store until that is closed or gone, from a thread of its own.

    The thread also samples what the store does, for who asks later.
    """

    def __init__(self, store: Connector) -> None:
        """Listen for each path; where that cannot be, the log says so and all else goes on."""
        self._store = weakref.ref(store)
        self._process_id = os.getpid()
        self._listening: dict[socket.socket, _Listener] = {}
        self._servers: dict[str, Callable[[socket.socket], None]] = {}
        self.sampler: Final = Sampler(store)
        close_in_forks(self)
        weakref.finalize(store, self.close)
        try:
            for one in store.stats()["paths"]:
                if one["in_use"]:
                    self._listen(Path(one["path"]))
            # Here, while none is closed: the thread may begin after close().
            listening = {one.fileno(): (one, at) for one, at in self._listening.items()}
            threading.Thread(
                target=self._serve, args=(listening,), name="kvring-owner", daemon=True
            ).start()
        except (OSError, RuntimeError, KvRingError) as error:
            _logger.warning("commands cannot ask the owner of the store: %s", error)
            self.close()

    def serve(self, request: str, serve: Callable[[socket.socket], None]) -> None:
        """Hand each connection with this request to `serve`, in a thread of its own."""
        self._servers[request] = serve

    def close(self) -> None:
        """Listen no more. Idempotent; in a fork only what the fork has is closed."""
        self._servers.clear()
        listening, self._listening = self._listening, {}
        is_owner = os.getpid() == self._process_id
        for one in listening:
            with suppress(OSError):
                # Wakes the thread. The socket is shared with forks, and so is its end.
                if is_owner:
                    one.shutdown(socket.SHUT_RDWR)
            # Its file stays: a file system that is frozen or dead would hold up whoever removes it.
            one.close()

    def close_in_fork(self) -> None:
        """Close what a fork has of the sockets."""
        self.close()

    def _listen(self, path: Path) -> None:
        for name in names(path):
            with _told_if_it_fails(path, "a name"):
                self._listen_at(name, _Listener(path, is_trusted=path.is_block_device()))
        if not path.is_block_device():
            with _told_if_it_fails(path, SOCKET_NAME), at_file(path) as (address, directory):
                _remove_stale(directory)
                self._listen_at(address, _Listener(path, is_trusted=True))

    def _listen_at(self, address: str, listener: _Listener) -> None:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # bind() gives a file the mode of the socket.
            os.fchmod(one.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            one.bind(address)
            one.listen(_MOST_WAITING)
            # Who hung up before it was accepted is not waited for.
            one.setblocking(False)
        except BaseException:
            one.close()
            raise
        self._listening[one] = listener

    def _serve(self, listening: dict[int, tuple[socket.socket, _Listener]]) -> None:
        # They are for the threads of the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        poll = select.poll()
        for descriptor in listening:
            poll.register(descriptor, select.POLLIN)
        while self._listening:
            # A page without a sample is better than a store that nobody can ask.
            with suppress(Exception):
                self.sampler.sample_if_due()
            for descriptor, _ in poll.poll(math.ceil(self.sampler.wait_s() * 1000)):
                one, listener = listening[descriptor]
                try:
                    connection, _ = one.accept()
                except OSError as error:
                    # It was closed, or who asked is gone; or the process has no descriptor left.
                    if error.errno in OUT_OF_DESCRIPTORS:
                        time.sleep(PAUSE_S)
                    continue
                # Whatever goes wrong for one, the next one is answered.
                with connection, suppress(Exception):
                    self._answer(connection, listener)

    def _answer(self, connection: socket.socket, listener: _Listener) -> None:
        _, user_id = peer_of(connection)
        # The abstract namespace has no modes.
        if user_id not in (0, os.geteuid()):
            return
        line = Line(connection).read(_MOST_REQUEST_BYTES, _REQUEST_DEADLINE_S)
        try:
            request = json.loads(line)
            if not listener.is_trusted and request["ask"] not in _ANSWERED_BY_NAME:
                message = (
                    f"{request['ask']!r} is answered at {SOCKET_NAME} in {listener.path} alone"
                )
                raise PermissionError(message)
            serve = self._servers.get(request["ask"])
            if serve is None and request["ask"] in LOOKS:
                _reply(connection, lambda: self._look(request["ask"], listener.path))
                return
            self._start(connection, request, serve)
        except Exception as error:  # noqa: BLE001 - whatever is asked, the next one is answered
            _send(connection, {"error": str(error) or type(error).__name__})

    def _start(
        self,
        connection: socket.socket,
        request: dict[str, Any],
        serve: Callable[[socket.socket], None] | None,
    ) -> None:
        """Serve in a thread: a disk that has to be waited for keeps nobody else waiting.

        Raises:
            RuntimeError: No thread is to be had.
        """

        def change(own: socket.socket) -> None:
            with own, suppress(OSError):
                _reply(own, lambda: self._change(request))

        name = "kvring-change" if serve is None else "kvring-reads"
        # The thread closes it.
        own = connection.dup()
        try:
            threading.Thread(target=serve or change, args=(own,), name=name, daemon=True).start()
        except RuntimeError:
            own.close()
            raise

    def _open_store(self) -> Connector:
        store = self._store()
        if store is None:
            raise LookupError("the store was closed")
        return store

    def _look(self, request: str, path: Path) -> Any:
        """Answer what needs no disk."""
        if request == "history":
            return json.loads(self.sampler.history.document())
        return {"path": str(path)} | stats_of(self._open_store())

    def _change(self, request: dict[str, Any]) -> Any:
        store = self._open_store()
        if request["ask"] == "purge":
            return store.purge(request["namespace"])
        if request["ask"] == "resize":
            _resize(store, request["capacities"])
            return store.limits()
        if request["ask"] == "epoch":
            store.set_epoch(request["name"])
            return request["name"]
        message = f"kvring {__version__} does not know the request {request['ask']!r}"
        raise ValueError(message)


def _resize(store: Connector, capacities: list[list[int]]) -> None:
    """Give the store other capacities: device, inode and bytes of each directory.

    Its paths may have other names where it was asked: in a container, say.
    """
    given = {(device, inode): size_bytes for device, inode, size_bytes in capacities}
    ordered = []
    for one in store.stats()["paths"]:
        found = Path(one["path"]).stat()
        size_bytes = given.get((found.st_dev, found.st_ino))
        if size_bytes is None:
            message = f"{one['path']} is a path of the store too: name all of them"
            raise LookupError(message)
        ordered.append(size_bytes)
    if further := len(given) - len(ordered):
        message = f"{further} of the paths that were named are of another store: name them apart"
        raise LookupError(message)
    store.change_limits(capacity=ordered)


def _reply(connection: socket.socket, answer: Callable[[], Any]) -> None:
    """Send an answer, or why there is none."""
    try:
        document = {"answer": answer()}
    except Exception as error:  # noqa: BLE001 - whatever is asked, the next one is answered
        document = {"error": str(error) or type(error).__name__}
    _send(connection, document)


def _send(connection: socket.socket, document: dict[str, Any]) -> None:
    connection.settimeout(_REQUEST_DEADLINE_S)
    connection.sendall(json.dumps(document).encode() + b"\n")


@contextmanager
def _told_if_it_fails(path: Path, where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _logger.warning("commands cannot ask the owner of %s by %s: %s", path, where, error)


def _remove_stale(directory: int) -> None:
    """Remove the socket of the owner before: whoever comes here has the store's lock."""
    with suppress(FileNotFoundError):
        if not is_socket(directory):
            message = f"{SOCKET_NAME} is there and is no socket; move it away"
            raise FileExistsError(message)
        os.unlink(SOCKET_NAME, dir_fd=directory)
