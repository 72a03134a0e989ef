"""Epochs of weights that change under one model name, from outside of the engine."""

from pathlib import Path

from kvring._native import KvRingError
from kvring.owner_requests import ask

__all__ = ["set_epoch"]


def set_epoch(path: str | Path, name: str, *, index_path: str | Path | None = None) -> None:
    """Begin an epoch of weights in an open store, also of another process (docs/how-to/weights.md).

    Raises:
        KvRingError: The store is not open, or its owner refuses.
    """
    index = None if index_path is None else Path(index_path)
    if ask(Path(path), index, {"ask": "epoch", "name": name}) is None:
        message = f"{path}: nobody has a store open there; an epoch lasts until it is closed"
        raise KvRingError(message)
