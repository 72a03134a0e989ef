"""The space that a store has, and may still take, on a file system."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kvring.cli.doctor.findings import Finding, Level
from kvring.cli.output import size_text
from kvring.cli.places import taken_on_disk

__all__ = ["TRIAL_BYTES", "has_room_for_trial", "look_at_space"]

# The smallest store.
TRIAL_BYTES: Final = 16 << 20
# With `min_free = "auto"` a store leaves free the smaller of these.
_FLOOR_BYTES: Final = 10 << 30
_FLOOR_PART: Final = 20
_SPARE_PART: Final = 16

_CHECK: Final = "free space"


def has_room_for_trial(directory: Path) -> bool:
    """Tell whether a store can be made there to see how it works."""
    return shutil.disk_usage(directory).free >= 2 * TRIAL_BYTES


def look_at_space(
    path: Path, there: Path, capacity_bytes: int | None, owner: dict[str, Any] | None
) -> Iterator[Finding]:
    """Look at what is free for a store.

    Args:
        path: That of the store.
        there: The nearest directory that exists.
        capacity_bytes: What it is to take, if that is told.
        owner: What an owner that has it open says of the path, if there is one.
    """
    usage = shutil.disk_usage(there)
    what = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
    has_store = (path / "index.kvring").exists()
    taken_bytes = _taken_bytes(path, owner) if has_store else 0
    if has_store:
        what += f", and the store has {size_text(taken_bytes)}"
    if capacity_bytes is None and owner is not None:
        capacity_bytes = owner["capacity_bytes"]
    # A part of the capacity that is set aside for its index a store may never take.
    spare_bytes = capacity_bytes // _SPARE_PART if has_store and capacity_bytes is not None else 0
    most_bytes = taken_bytes + max(0, usage.free - min(_FLOOR_BYTES, usage.total // _FLOOR_PART))
    if not has_store and usage.free < 2 * TRIAL_BYTES:
        remedy = "free space, or name another path"
        yield Finding(Level.ERROR, _CHECK, f"{what}: there is no room for a store", remedy)
    elif capacity_bytes is not None and capacity_bytes - spare_bytes > most_bytes:
        remedy = f"free space, or lower the capacity to {size_text(most_bytes)} or less"
        what += f": a capacity of {size_text(capacity_bytes)} is never reached"
        yield Finding(Level.WARNING, _CHECK, what, remedy)
    else:
        yield Finding(Level.OK, _CHECK, what)
    files = os.statvfs(there)
    if files.f_files and not files.f_favail:
        level = Level.WARNING if has_store else Level.ERROR
        yield Finding(level, _CHECK, "no inode is free", "remove files")


def _taken_bytes(path: Path, owner: dict[str, Any] | None) -> int:
    if owner is not None:
        return int(owner["used_bytes"])
    return taken_on_disk(path)
