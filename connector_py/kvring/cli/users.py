"""Paths of other users: whose they are, and how to run a command as that user."""

import os
import pwd
import shlex
from pathlib import Path

import click

__all__ = ["as_user", "is_forbidden", "owner_of", "user_name", "whose"]


def user_name(user_id: int) -> str:
    """Return the name of a user as sudo takes it."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"#{user_id}"


def as_user(user_id: int, command: str | None = None) -> str:
    """Return a command, by default the one that runs, as that user runs it."""
    context = click.get_current_context(silent=True)
    if command is None:
        command = shlex.join(("kvring", *(context.obj if context is not None else ())))
    return f"sudo -u {shlex.quote(user_name(user_id))} {command}"


def is_forbidden(path: Path) -> bool:
    """Tell whether this user may not read what is at a path."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.R_OK, effective_ids=True)


def whose(path: Path) -> str:
    """Return a sentence on a path that this user may not read: whose it is, and what to type."""
    sentence, user_id = owner_of(path)
    return f"{sentence}: {as_user(user_id)}"


def owner_of(path: Path) -> tuple[str, int]:
    """Return a sentence on what this user may not read of a path, and the user whose that is."""
    path = path.absolute()
    for one in (*reversed(path.parents), path):
        try:
            status = one.stat()
        except OSError:
            break
        found, user_id = one, status.st_uid
        if not os.access(one, os.R_OK if one == path else os.X_OK, effective_ids=True):
            break
    what = str(found) if found == path else f"{found}, which {path} is in,"
    user = user_name(os.geteuid())
    sentence = f"{what} is of user {user_name(user_id)}, and this user ({user}) may not read it"
    return sentence, user_id
