"""The socket of an open store, on which its owner answers commands of this machine.

It is `owner-socket.kvring` in the directory of each path, for the owner's user alone. A block
device has no directory: its socket is in the abstract namespace (unix(7)), under the id of its
store. A connection carries one request and one answer, a line of JSON each.
"""

import json
import logging
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
from typing import Any, Final

from kvring._native import Connector, KvRingError, StoredChunks, __version__
from kvring.forks import close_in_forks
from kvring.socket_peers import OUT_OF_DESCRIPTORS, PAUSE_S, check_not_stopped, check_user, peer_of

__all__ = ["Line", "OwnerSocket", "ask", "connect"]

# docs/format.md
_NAME: Final = "owner-socket.kvring"
_INDEX_NAME: Final = "index.kvring"

_MOST_REQUEST_BYTES: Final = 64 << 10
_MOST_RECEIVED_BYTES: Final = 64 << 10
_MOST_WAITING: Final = 16
# Of a request: one that does not come must not keep others waiting for longer.
_REQUEST_DEADLINE_S: Final = 5.0
# Of an answer: a purge of millions of chunks takes a while.
_ANSWER_DEADLINE_S: Final = 30.0
_PURGE_DEADLINE_S: Final = 120.0
# How often it is looked whether the owner goes on at all.
_LOOK_INTERVAL_S: Final = 0.5

_logger = logging.getLogger(__name__)


class OwnerSocket:
    """Answers for a store until that is closed or gone, from a thread of its own."""

    def __init__(self, store: Connector, index_path: Path | None) -> None:
        """Listen at each path; where that cannot be, the log says so and all else goes on."""
        self._store = weakref.ref(store)
        self._process_id = os.getpid()
        self._listening: list[socket.socket] = []
        self._servers: dict[str, Callable[[socket.socket], None]] = {}
        close_in_forks(self)
        weakref.finalize(store, self.close)
        try:
            for one in store.stats()["paths"]:
                if one["in_use"]:
                    self._listen(Path(one["path"]), index_path)
            threading.Thread(target=self._serve, name="kvring-owner", daemon=True).start()
        except (OSError, RuntimeError, KvRingError) as error:
            _logger.warning("commands cannot ask the owner of the store: no socket: %s", error)
            self.close()

    def serve(self, request: str, serve: Callable[[socket.socket], None]) -> None:
        """Hand each connection with this request to `serve`, in a thread of its own."""
        self._servers[request] = serve

    def close(self) -> None:
        """Listen no more. Idempotent; in a fork only what the fork has is closed."""
        self._servers.clear()
        listening, self._listening = self._listening, []
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

    def _listen(self, path: Path, index_path: Path | None) -> None:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(path, index_path) as (address, directory):
                if directory is not None:
                    _remove_stale(directory)
                    # bind() gives the file the mode of the socket.
                    os.fchmod(one.fileno(), stat.S_IRUSR | stat.S_IWUSR)
                one.bind(address)
            one.listen(_MOST_WAITING)
            # Who hung up before it was accepted is not waited for.
            one.setblocking(False)
        except BaseException:
            one.close()
            raise
        self._listening.append(one)

    def _serve(self) -> None:
        # They are for the threads of the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        poll = select.poll()
        listening = {one.fileno(): one for one in self._listening}
        for descriptor in listening:
            poll.register(descriptor, select.POLLIN)
        while self._listening:
            for descriptor, _ in poll.poll():
                try:
                    connection, _ = listening[descriptor].accept()
                except OSError as error:
                    # It was closed, or who asked is gone; or the process has no descriptor left.
                    if error.errno in OUT_OF_DESCRIPTORS:
                        time.sleep(PAUSE_S)
                    continue
                with connection, suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        _, user_id = peer_of(connection)
        # The abstract namespace has no modes.
        if user_id not in (0, os.geteuid()):
            return
        line = Line(connection).read(_MOST_REQUEST_BYTES, _REQUEST_DEADLINE_S)
        try:
            request = json.loads(line)
            serve = self._servers.get(request["ask"])
            if serve is not None:
                # What is left of the connection here is closed.
                own = (connection.dup(),)
                threading.Thread(target=serve, args=own, name="kvring-reads", daemon=True).start()
                return
            answer = {"answer": self._answer_to(request)}
        except Exception as error:  # noqa: BLE001 - whatever is asked, the next one is answered
            answer = {"error": str(error) or type(error).__name__}
        connection.settimeout(_REQUEST_DEADLINE_S)
        connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer_to(self, request: dict[str, Any]) -> Any:
        store = self._store()
        if store is None:
            raise LookupError("the store was closed")
        if request["ask"] == "stats":
            return {
                "process_id": os.getpid(),
                "version": __version__,
                "time_s": time.time(),
                "stats": store.stats(),
                "usage": store.usage(),
                "recovery": store.recovery,
                "latency": [
                    {"op": op, "phase": phase, "buckets": buckets, "count": count, "sum_us": sum_us}
                    for op, phase, buckets, count, sum_us in store.latency_histograms()
                ],
            }
        if request["ask"] == "purge":
            return store.purge(request["namespace"])
        if request["ask"] == "epoch":
            store.set_epoch(request["name"])
            return request["name"]
        message = f"kvring {__version__} does not know the request {request['ask']!r}"
        raise ValueError(message)


def ask(path: Path, index_path: Path | None, request: dict[str, Any]) -> Any:
    """Ask the owner of the store at `path`.

    Returns:
        Its answer; None if no owner listens there.

    Raises:
        PermissionError: The owner is another user's, or it is not the store's owner who listens.
        TimeoutError: It does not answer.
        KvRingError: It cannot do what was asked.
    """
    # Who is refused is hung up on.
    line = b""
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            connection = connect(path, index_path, request)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        with connection:
            line = _await_answer(connection, path, is_purge=request["ask"] == "purge")
    if not line:
        message = f"the owner of {path} does not answer this user, or is being closed"
        raise PermissionError(message)
    answer = json.loads(line)
    if "error" in answer:
        raise KvRingError(answer["error"])
    return answer["answer"]


def connect(path: Path, index_path: Path | None, request: dict[str, Any]) -> socket.socket:
    """Connect to the owner of the store at `path`, and send it a request.

    Raises:
        PermissionError: Who listens there may not be the owner: nothing was sent.
        OSError: No owner listens there, or it does not answer.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_REQUEST_DEADLINE_S)
        with _address(path, index_path) as (address, directory):
            if directory is not None and not _is_socket(directory):
                raise ConnectionRefusedError
            connection.connect(address)
            own = path.stat() if directory is None else os.stat(_INDEX_NAME, dir_fd=directory)
            check_user(connection, path, own.st_uid)
            # It would do later what nobody waits for any more.
            check_not_stopped(connection, path)
        connection.sendall(json.dumps(request).encode() + b"\n")
    except BaseException:
        connection.close()
        raise
    return connection


def _await_answer(connection: socket.socket, path: Path, *, is_purge: bool) -> bytes:
    """Wait for the owner's line.

    Raises:
        TimeoutError: The owner is stopped, or does not answer in time.
    """
    deadline_s = _PURGE_DEADLINE_S if is_purge else _ANSWER_DEADLINE_S
    line, end_s = Line(connection), time.monotonic() + deadline_s
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    connection.setblocking(False)
    while not line.is_there():
        check_not_stopped(connection, path)
        if time.monotonic() > end_s:
            message = f"it did not answer in {deadline_s:.0f} s"
            raise TimeoutError(message)
        poll.poll(_LOOK_INTERVAL_S * 1000)
    return line.read()


def _is_socket(directory: int) -> bool:
    """Tell whether there is a socket, and not what leads elsewhere.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    return stat.S_ISSOCK(os.stat(_NAME, dir_fd=directory, follow_symlinks=False).st_mode)


class Line:
    """Reads lines from a connection, as long as its timeout lets it."""

    def __init__(self, connection: socket.socket) -> None:
        """Read from a connection; nobody else does."""
        self._connection = connection
        self._received = bytearray()

    def is_there(self) -> bool:
        """Say whether a whole line has come, or the end; wait for neither."""
        while b"\n" not in self._received:
            try:
                part = self._connection.recv(_MOST_RECEIVED_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            if not part:
                return True
            self._received += part
        return True

    def read(self, most_bytes: int | None = None, deadline_s: float | None = None) -> bytes:
        """Return the next line.

        Args:
            most_bytes: What is longer is returned without its end.
            deadline_s: In which all of it must come.

        Returns:
            The line; without its end if the other side hung up before that, or it is too long.
        """
        end_s = None if deadline_s is None else time.monotonic() + deadline_s
        while b"\n" not in self._received:
            if most_bytes is not None and len(self._received) > most_bytes:
                break
            if end_s is not None:
                self._connection.settimeout(max(end_s - time.monotonic(), 0.001))
            part = self._connection.recv(_MOST_RECEIVED_BYTES)
            if not part:
                break
            self._received += part
        line, end, rest = self._received.partition(b"\n")
        self._received = rest
        return bytes(line + end)


@contextmanager
def _address(path: Path, index_path: Path | None) -> Iterator[tuple[str, int | None]]:
    """Lend the address of the socket, and a descriptor of its directory if it has one."""
    if path.is_block_device():
        yield f"\0kvring-{StoredChunks(path, index_path).facts()['store_id']}", None
        return
    directory = os.open(path, os.O_DIRECTORY | os.O_PATH)
    try:
        # A path may be longer than the 107 bytes of an address.
        yield f"/proc/self/fd/{directory}/{_NAME}", directory
    finally:
        os.close(directory)


def _remove_stale(directory: int) -> None:
    """Remove the socket of the owner before: whoever comes here has the store's lock."""
    with suppress(FileNotFoundError):
        if not _is_socket(directory):
            message = f"{_NAME} is there and is no socket; move it away"
            raise FileExistsError(message)
        os.unlink(_NAME, dir_fd=directory)
