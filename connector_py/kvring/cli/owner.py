"""The owner of a store, as commands ask it."""

import os
from pathlib import Path
from typing import Any

from kvring import KvRingError
from kvring.cli.disk import check_disk, check_not_frozen, place_of
from kvring.cli.failure import Failure
from kvring.cli.stores import facts_of
from kvring.cli.users import as_user, whose
from kvring.owner_requests import LOOKS, ask
from kvring.socket_peers import OtherUserError

__all__ = ["ask_owner", "need_owner"]


def ask_owner(path: Path, index_path: Path | None, **request: Any) -> dict[str, Any] | None:
    """Return the answer of the owner of the store at `path`; None if nobody has it open.

    The disk is looked at only where it takes that to find the owner.

    Raises:
        Failure: There is no store, its owner cannot be asked, or cannot do what was asked.
    """

    def while_waiting() -> None:
        _check_disk(path, index_path, is_change=request["ask"] not in LOOKS)

    try:
        answer = ask(path, index_path, request, look=place_of, while_waiting=while_waiting)
    except KvRingError as error:
        raise Failure(f"the owner of {path} refuses: {error}") from error
    except OSError as error:
        message = f"the owner of {path} cannot be asked: {_reason(path, error)}"
        raise Failure(message) from error
    if answer is not None:
        return dict(answer)
    if holder := facts_of(path, index_path)["holder"]:
        message = (
            f"{path} is open in {holder}, which does not listen: its kvring is older or was not "
            "started from Python, or it runs in another network namespace"
        )
        raise Failure(message)
    return None


def _check_disk(path: Path, index_path: Path | None, *, is_change: bool) -> None:
    """Go on waiting for the owner unless that waits for its disk.

    Raises:
        TimeoutError: It does.
    """
    try:
        check_disk(path)
        if is_change:
            check_not_frozen(index_path or path)
    except TimeoutError as error:
        message = f"{error}; the owner completes the request when it answers again"
        raise TimeoutError(message) from None


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, OtherUserError):
        is_root = os.geteuid() == 0
        return f"{error}" if is_root else f"{error}: {as_user(error.user_id)}"
    return whose(path) if isinstance(error, PermissionError) else str(error)


def need_owner(path: Path, index_path: Path | None, **request: Any) -> dict[str, Any]:
    """Return the answer of the owner.

    Raises:
        Failure: As of `ask_owner`, or nobody has the store open.
    """
    answer = ask_owner(path, index_path, **request)
    if answer is None:
        message = f"nobody has {path} open; `kvring info {path}` tells what it holds"
        raise Failure(message)
    return answer
