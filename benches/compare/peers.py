"""The connectors under comparison, each opened the way LMCache opens it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, cast

Completion = tuple[int, bool, str, "list[bool] | None"]

KVRING = "kvring"
FS_NATIVE = "fs_native"

KVRING_CAPACITY = "8GiB"
FS_NATIVE_WORKERS = 4


class NativeConnector(Protocol):
    """What LMCache asks of a native connector."""

    def event_fd(self) -> int:
        """Return the descriptor that becomes readable when there is something to drain."""

    def submit_batch_set(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Begin to store the memory under the keys."""

    def submit_batch_get(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Begin to load the keys into the memory."""

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Begin to look the keys up."""

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Begin to remove the keys."""

    def drain_completions(self) -> Sequence[Completion]:
        """Return what has completed since the last call."""

    def close(self) -> None:
        """Let go of everything."""


def open_kvring(directory: Path) -> NativeConnector:
    """Open kvring with its defaults.

    Args:
        directory: Where it keeps its data.

    Returns:
        The open connector.
    """
    kvring = importlib.import_module("kvring")
    return cast(NativeConnector, kvring.Connector(path=str(directory), capacity=KVRING_CAPACITY))


def open_fs_native(directory: Path) -> NativeConnector:
    """Open LMCache's C++ file-per-chunk client as its `fs_native` adapter does.

    Args:
        directory: Where it keeps its files.

    Returns:
        The open connector.
    """
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    lmcache_fs = importlib.import_module("lmcache.lmcache_fs")
    relative_tmp_dir, use_odirect, read_ahead_size_bytes = "", True, 0
    return cast(
        NativeConnector,
        lmcache_fs.LMCacheFSClient(
            str(directory), FS_NATIVE_WORKERS, relative_tmp_dir, use_odirect, read_ahead_size_bytes
        ),
    )


OPENERS: dict[str, Callable[[Path], NativeConnector]] = {
    KVRING: open_kvring,
    FS_NATIVE: open_fs_native,
}


def peer_facts(connector: NativeConnector) -> dict[str, object]:
    """Return what a connector says of how it runs, as far as it says anything."""
    stats = getattr(connector, "stats", None)
    if stats is None:
        return {}
    return {name: value for name, value in stats().items() if name in _TELLING_STATS}


# A figure is only worth comparing if it was reached through the ring, and past the page cache.
_TELLING_STATS = ("engine", "direct_io")
_PACKAGES = {KVRING: "kvring", FS_NATIVE: "lmcache"}


def peer_version(peer: str) -> str:
    """Return the version of the package that a peer comes from."""
    return version(_PACKAGES[peer])
