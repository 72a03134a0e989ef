"""The owner of a store, as commands ask it."""

from pathlib import Path
from typing import Any

from kvring import KvRingError
from kvring.cli.failure import Failure
from kvring.cli.stores import facts_of
from kvring.owner_socket import ask

__all__ = ["ask_owner", "need_owner"]


def ask_owner(path: Path, index_path: Path | None, **request: Any) -> dict[str, Any] | None:
    """Return the answer of the owner of the store at `path`; None if nobody has it open.

    Raises:
        Failure: There is no store, its owner cannot be asked, or cannot do what was asked.
    """
    facts = facts_of(path, index_path)
    try:
        answer = ask(path, index_path, request)
    except PermissionError as error:
        # Of the system where the directory may not be entered; else ours.
        reason = error if error.errno is None else "it is another user's"
        message = f"the owner of {path} cannot be asked: {reason}; run this as the store's user"
        raise Failure(message) from None
    except (OSError, KvRingError) as error:
        message = f"the owner of {path} cannot be asked: {error}"
        raise Failure(message) from error
    if answer is None and (holder := facts["holder"]):
        message = (
            f"{path} is open in {holder}, which does not listen: its kvring is older or was not "
            "started from Python, or a device's owner runs in another network namespace"
        )
        raise Failure(message)
    return dict(answer) if answer is not None else None


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
