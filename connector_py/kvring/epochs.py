"""Epochs of weights that change under one model name, from outside of the engine."""

from pathlib import Path

from kvring._native import KvRingError
from kvring.owner_requests import ask

__all__ = ["set_epoch"]


def set_epoch(path: str | Path, name: str, *, index_path: str | Path | None = None) -> None:
    """Begin an epoch in a store that another process, or this one, has open.

    What was stored in another epoch is missed from now on, and found again when that returns.
    docs/how-to/weights.md says when.

    Args:
        path: One of the paths of the store.
        name: Any text, for instance the step of the training. "" is that in which stores are
            opened.
        index_path: Where the index is, if it is elsewhere.

    Raises:
        KvRingError: Nobody has a store open there, or its owner cannot do it.
        OSError: Its owner cannot be asked.
    """
    index = None if index_path is None else Path(index_path)
    if ask(Path(path), index, {"ask": "epoch", "name": name}) is None:
        message = f"{path}: nobody has a store open there; an epoch lasts until it is closed"
        raise KvRingError(message)
