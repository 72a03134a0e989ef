"""Requests to the owner of a store, from another process of this machine."""

import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kvring._native import KvRingError
from kvring.owner_address import Look, Place, at_file, is_of_inode, is_socket, look_at, names_at
from kvring.socket_peers import Line, OtherUserError, check_not_stopped, check_user, peer_of

__all__ = ["LOOKS", "ask", "connect"]

# Requests that change nothing, and need no disk.
LOOKS: Final = ("stats", "history")
# Nobody is there, which says nothing of who is elsewhere.
_ABSENT: Final = (FileNotFoundError, ConnectionRefusedError)

# Of a request.
_REQUEST_DEADLINE_S: Final = 5.0
# Of an answer: a purge of millions of chunks takes a while.
_ANSWER_DEADLINE_S: Final = 30.0
_PURGE_DEADLINE_S: Final = 120.0
# How often it is looked whether the owner goes on at all.
_LOOK_INTERVAL_S: Final = 0.5


def ask(
    path: Path,
    index_path: Path | None,
    request: dict[str, Any],
    *,
    look: Look = look_at,
    deadline_s: float | None = None,
    while_waiting: Callable[[], None] | None = None,
) -> Any:
    """Ask the owner of the store at `path`.

    Args:
        path: The path.
        index_path: Where the index is, if it is elsewhere.
        request: What is asked.
        look: Looks at the path on the disk, where that is needed.
        deadline_s: How long an answer may take; by default by what is asked.
        while_waiting: Called now and then until it comes; what it raises ends that.

    Returns:
        Its answer; None if no owner listens there.

    Raises:
        OtherUserError: The owner is another user's, or it is not the store's owner who listens.
        OSError: It does not answer, or the disk does not.
        KvRingError: It cannot do what was asked.
    """
    # Who is refused is hung up on.
    line = b""
    if deadline_s is None:
        deadline_s = _PURGE_DEADLINE_S if request["ask"] == "purge" else _ANSWER_DEADLINE_S
    try:
        connection = connect(path, index_path, request, look=look, deadline_s=deadline_s)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    with connection, suppress(BrokenPipeError, ConnectionResetError):
        line = _await_answer(connection, path, deadline_s, while_waiting)
    if not line:
        message = f"the owner of {path} has hung up: it was closed or killed; see kvring status"
        raise ConnectionError(message)
    answer = json.loads(line)
    if "error" in answer:
        raise KvRingError(answer["error"])
    return answer["answer"]


def connect(
    path: Path,
    index_path: Path | None,
    request: dict[str, Any],
    *,
    look: Look = look_at,
    deadline_s: float = _REQUEST_DEADLINE_S,
) -> socket.socket:
    """Connect to the owner of the store at `path`, and send it a request.

    To look, the disk is looked at only if one name does not settle who it is. A change goes to the
    file in the store, so that it is this store's; by name where the disk does not tell.

    Raises:
        OtherUserError: Who listens there may not be the owner: nothing was sent.
        FileNotFoundError: There is no store, and nobody listens.
        ConnectionRefusedError: Nobody listens.
        OSError: The disk does not tell, or the owner does not answer.
    """
    place: Place | None = None

    def place_now() -> Place:
        nonlocal place
        if place is None:
            place = look(path, index_path)
        return place

    ways = (_by_name, _by_file) if request["ask"] in LOOKS else (_by_file, _by_name)
    errors: list[OSError] = []
    for way in ways:
        with _noted_in(errors):
            return way(path, request, place_now, deadline_s)
    telling = [one for one in errors if not isinstance(one, _ABSENT)]
    raise telling[0] if telling else errors[ways.index(_by_file)]


@contextmanager
def _noted_in(errors: list[OSError]) -> Iterator[None]:
    """Go on after an error: the next one may be the owner."""
    try:
        yield
    except OSError as error:
        errors.append(error)


def _by_name(
    path: Path, request: dict[str, Any], look: Callable[[], Place], deadline_s: float
) -> socket.socket:
    """Ask the owner under a name; anybody may listen under one, so each is tried.

    Raises:
        OSError: Of the first one that does not answer.
    """
    errors: list[OSError] = []
    for name in _names_of_owner(path, look, may_move=request["ask"] in LOOKS):
        with _noted_in(errors):
            return _asked(name, path, request, look, deadline_s)
    telling = [one for one in errors if not isinstance(one, _ABSENT)]
    raise (*telling, ConnectionRefusedError())[0]


def _by_file(
    path: Path, request: dict[str, Any], look: Callable[[], Place], deadline_s: float
) -> socket.socket:
    """Ask the owner at the file in its directory.

    Raises:
        OSError: The disk does not tell, there is no file, or nobody answers.
    """
    if look().is_device:
        raise ConnectionRefusedError
    with at_file(path) as (address, directory):
        if not is_socket(directory):
            raise ConnectionRefusedError
        return _asked(address, path, request, look, deadline_s)


def _names_of_owner(path: Path, look: Callable[[], Place], *, may_move: bool) -> list[str]:
    """Return the names under which the owner may listen.

    With `may_move` the only one there is will do, though its directory may be elsewhere by now.
    """
    found = names_at(path)
    if may_move and len(found) == 1:
        return found
    try:
        place = look()
    except OSError:
        # One of them may answer all the same; if not, this is raised again.
        return found
    return [
        name
        for name in dict.fromkeys([*found, *names_at(place.resolved)])
        if is_of_inode(name, place.inode)
    ]


def _asked(
    address: str,
    path: Path,
    request: dict[str, Any],
    look: Callable[[], Place],
    deadline_s: float,
) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(min(deadline_s, _REQUEST_DEADLINE_S))
        connection.connect(address)
        _check_owner(connection, path, request, look)
        # It would do later what nobody waits for any more.
        check_not_stopped(connection, path)
        connection.sendall(json.dumps(request).encode() + b"\n")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_owner(
    connection: socket.socket, path: Path, request: dict[str, Any], look: Callable[[], Place]
) -> None:
    """Check that who listens is the store's owner.

    Raises:
        OtherUserError: It is not, as far as can be told, or it would not answer this user.
    """
    process_id, user_id = peer_of(connection)
    if user_id == os.geteuid():
        return
    if os.geteuid() != 0:
        message = (
            f"process {process_id} of user {user_id} listens for {path}, and answers that user and "
            "root alone"
        )
        raise OtherUserError(message, user_id)
    try:
        owner_id = look().user_id
    except OSError:
        # With a dead disk nobody knows whose the store is. Nothing secret is in this request.
        if os.geteuid() == 0 and request["ask"] == "stats":
            return
        owner_id = None
    check_user(connection, path, owner_id)


def _await_answer(
    connection: socket.socket,
    path: Path,
    deadline_s: float,
    while_waiting: Callable[[], None] | None,
) -> bytes:
    """Wait for the owner's line.

    Raises:
        TimeoutError: The owner is stopped, or does not answer in time.
    """
    line, end_s = Line(connection), time.monotonic() + deadline_s
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    connection.setblocking(False)
    while not line.is_there():
        check_not_stopped(connection, path)
        if time.monotonic() > end_s:
            process_id, _ = peer_of(connection)
            message = f"process {process_id} did not answer in {deadline_s:.0f} s"
            raise TimeoutError(message)
        has_come = poll.poll(min(deadline_s, _LOOK_INTERVAL_S) * 1000)
        if not has_come and while_waiting is not None:
            while_waiting()
    return line.read()
