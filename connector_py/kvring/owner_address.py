"""Where the owner of a store listens: under names that need no disk, and at a file of the store.

A name is in the abstract namespace (unix(7)), of the owner's network namespace. It is made of what
the kernel knows without the disk: the device of the file system, the path within that, and the
inode of the directory, as a directory may be moved away and another one take its place. So it is
found from each mount namespace. A random end keeps it free: the kernel has the name of an owner for
a moment after that has closed it, and somebody else could take it. A file reaches across network
namespaces, as long as the disk answers.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from kvring.mounts import mount_at

__all__ = [
    "CHUNKS_NAME",
    "DATA_NAME",
    "INDEX_NAME",
    "SOCKET_NAME",
    "Look",
    "Place",
    "at_file",
    "is_of_inode",
    "is_socket",
    "look_at",
    "names",
    "names_at",
]

# docs/explanation/format.md
SOCKET_NAME: Final = "owner-socket.kvring"
INDEX_NAME: Final = "index.kvring"
DATA_NAME: Final = "data-00000.kvring"
CHUNKS_NAME: Final = "chunks"

# Their nodes can be looked at without a disk.
_IN_MEMORY: Final = ("devtmpfs", "tmpfs")
_DIGEST_BYTES: Final = 16
_TOKEN_BYTES: Final = 8


class Place(NamedTuple):
    """What the disk tells of the path of a store: where it leads, and whose it is."""

    resolved: Path
    is_device: bool
    inode: int
    user_id: int


Look = Callable[[Path, Path | None], Place]


def look_at(path: Path, index_path: Path | None) -> Place:
    """Look at the path of a store, on the disk: with a disk that is stuck this takes for ever.

    Raises:
        FileNotFoundError: There is no store.
        OSError: The disk does not tell.
    """
    status = path.stat()
    is_device = stat.S_ISBLK(status.st_mode)
    if not is_device:
        user_id = (path / INDEX_NAME).stat().st_uid
    else:
        user_id = status.st_uid if index_path is None else index_path.stat().st_uid
    inode = 0 if is_device else status.st_ino
    return Place(path.resolve(), is_device, inode, user_id)


def names(path: Path) -> list[str]:
    """Return the names under which the owner of the store at `path` is to listen.

    Raises:
        OSError: The disk does not tell.
    """
    status = path.stat()
    inode = 0 if stat.S_ISBLK(status.st_mode) else status.st_ino
    places = (_normal(path), path.resolve())
    prefixes = dict.fromkeys(prefix for prefix in map(_prefix, places) if prefix)
    return [f"{prefix}{inode}-{secrets.token_hex(_TOKEN_BYTES)}" for prefix in prefixes]


def is_of_inode(name: str, inode: int) -> bool:
    """Tell whether a name is that of a store whose directory has this inode."""
    return name.split("-")[-2:-1] == [str(inode)]


def names_at(path: Path) -> list[str]:
    """Return the names under which owners of stores at `path` listen. No disk is read.

    There may be several: of directories that were moved away, or by somebody who has no store.
    """
    prefix = _prefix(_normal(path))
    if prefix is None:
        return []
    shown = "@" + prefix[1:]
    found: dict[str, None] = {}
    # Where the kernel lists no sockets there is the file.
    with suppress(OSError), Path("/proc/net/unix").open("rb") as lines:
        for line in lines:
            name = line.rpartition(b" ")[2].rstrip(b"\n").decode(errors="replace")
            # A connection that was accepted has the name of who listens.
            if name.startswith(shown):
                found["\0" + name[1:]] = None
    return list(found)


def _normal(path: Path) -> Path:
    """Return a path from the root on. No disk is read, so links stay in it."""
    return Path(os.path.normpath(path.absolute()))


def _prefix(absolute: Path) -> str | None:
    """Return what the names at a path without links begin with; None if that is not told."""
    mount = mount_at(absolute)
    if mount is None:
        return None
    if mount.file_system in _IN_MEMORY and absolute.is_block_device():
        number = absolute.stat().st_rdev
        return f"\0kvring-{os.major(number)}:{os.minor(number)}-device-"
    within = mount.root / absolute.relative_to(mount.mount_point)
    digest = hashlib.blake2b(os.fsencode(within), digest_size=_DIGEST_BYTES).hexdigest()
    return f"\0kvring-{mount.device}-{digest}-"


@contextmanager
def at_file(path: Path) -> Iterator[tuple[str, int]]:
    """Lend the address of the file, and a descriptor of its directory."""
    directory = os.open(path, os.O_DIRECTORY | os.O_PATH)
    try:
        # A path may be longer than the 107 bytes of an address.
        yield f"/proc/self/fd/{directory}/{SOCKET_NAME}", directory
    finally:
        os.close(directory)


def is_socket(directory: int) -> bool:
    """Tell whether there is a socket, and not what leads elsewhere.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    return stat.S_ISSOCK(os.stat(SOCKET_NAME, dir_fd=directory, follow_symlinks=False).st_mode)
