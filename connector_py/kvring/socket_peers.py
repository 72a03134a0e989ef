"""The other end of a local socket: who it is, as the kernel tells (unix(7)), and its lines."""

import errno
import os
import socket
import struct
import time
from pathlib import Path
from typing import Final

__all__ = [
    "OUT_OF_DESCRIPTORS",
    "PAUSE_S",
    "Line",
    "OtherUserError",
    "StoppedError",
    "check_not_stopped",
    "check_user",
    "peer_of",
]

# Why nobody can be accepted who still waits: trying again at once would take a processor.
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S: Final = 0.5

_MOST_RECEIVED_BYTES: Final = 64 << 10
_CREDENTIALS: Final = struct.Struct("3i")


class OtherUserError(PermissionError):
    """It is a process of another user that listens for a store."""

    def __init__(self, message: str, user_id: int) -> None:
        """Say what follows from that, and which user it is."""
        super().__init__(message)
        self.user_id = user_id


class StoppedError(TimeoutError):
    """The owner of a store is stopped."""

    def __init__(self, message: str, process_id: int) -> None:
        """Say it, and which process it is."""
        super().__init__(message)
        self.process_id = process_id


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user; the process is 0 where it cannot be seen from here."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _ = _CREDENTIALS.unpack(credentials)
    return process_id, user_id


def check_user(connection: socket.socket, path: Path, store_user_id: int | None) -> None:
    """Check that who listens for the store at `path` may know what is asked.

    A request may name tenants by their salts. An address in the abstract namespace is anybody's to
    take, and so is a name in a directory that others write to.

    Raises:
        OtherUserError: It is neither this user, nor root, nor the user of the store's index, which
            is None where that is not known.
    """
    process_id, user_id = peer_of(connection)
    if user_id not in (0, os.geteuid(), store_user_id):
        message = (
            f"process {process_id} of user {user_id} listens for {path}, and is not of its user: "
            "nothing was sent"
        )
        raise OtherUserError(message, user_id)


def check_not_stopped(connection: socket.socket, path: Path) -> None:
    """Check that who has the store at `path` open goes on, as far as that can be seen from here.

    Raises:
        StoppedError: It is stopped.
    """
    process_id, _ = peer_of(connection)
    try:
        line = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return
    # Its state (proc(5)); the name of the program before it, in parentheses, may hold anything.
    if line.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"]):
        message = (
            f"process {process_id}, which has {path} open, is stopped (SIGSTOP, or a debugger): "
            f"ask again when it goes on (kill -CONT {process_id})"
        )
        raise StoppedError(message, process_id)


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
