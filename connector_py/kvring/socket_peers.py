"""Who is at the other end of a local socket, as the kernel tells (SO_PEERCRED in unix(7))."""

import errno
import os
import socket
import struct
from pathlib import Path
from typing import Final

__all__ = ["OUT_OF_DESCRIPTORS", "PAUSE_S", "check_not_stopped", "check_user", "peer_of"]

# Why nobody can be accepted who still waits: trying again at once would take a processor.
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S: Final = 0.5

_CREDENTIALS: Final = struct.Struct("3i")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user; the process is 0 where it cannot be seen from here."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _ = _CREDENTIALS.unpack(credentials)
    return process_id, user_id


def check_user(connection: socket.socket, path: Path, store_user_id: int) -> None:
    """Check that who listens for the store at `path` may know what is asked.

    A request may name tenants by their salts. An address in the abstract namespace is anybody's to
    take, and so is a name in a directory that others write to.

    Raises:
        PermissionError: It is neither this user, nor root, nor the user of the store's index.
    """
    process_id, user_id = peer_of(connection)
    if user_id not in (0, os.geteuid(), store_user_id):
        message = (
            f"process {process_id} of user {user_id} listens for {path}, and is not of its user: "
            "nothing was sent"
        )
        raise PermissionError(message)


def check_not_stopped(connection: socket.socket, path: Path) -> None:
    """Check that who has the store at `path` open goes on, as far as that can be seen from here.

    Raises:
        TimeoutError: It is stopped.
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
        raise TimeoutError(message)
