"""What is mounted where a path is, as the kernel lists it (proc_pid_mountinfo(5))."""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "mount_at", "mount_of"]


@dataclass(frozen=True)
class Mount:
    """What is mounted where a path is.

    `device` is the number of its device, MAJOR:MINOR. `root` is the directory of the file system
    that is at the mount point.
    """

    mount_point: Path
    file_system: str
    source: str
    options: frozenset[str]
    device: str
    root: Path


def mount_of(path: Path) -> Mount | None:
    """Return what is mounted where `path` leads to; None if that is not told."""
    return mount_at(Path(os.path.realpath(path)))


def mount_at(absolute: Path) -> Mount | None:
    """Return the same of a path without links. No disk is read."""
    found: Mount | None = None
    # A name is any bytes.
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            mount = _parsed(line)
            # Of two mounts on one another the later counts.
            is_deeper = found is None or len(mount.mount_point.parts) >= len(
                found.mount_point.parts
            )
            if is_deeper and absolute.is_relative_to(mount.mount_point):
                found = mount
    return found


def _parsed(line: str) -> Mount:
    fields, _, rest = line.partition(" - ")
    _, _, device, root, mount_point, options, *_ = fields.split()
    file_system, source, more = (rest.split(" ", 2) + [""] * 3)[:3]
    return Mount(
        Path(_unescape(mount_point)),
        file_system,
        _unescape(source),
        frozenset([*options.split(","), *more.strip().split(",")]),
        device,
        Path(_unescape(root)),
    )


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
