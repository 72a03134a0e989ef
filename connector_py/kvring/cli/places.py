"""Where `kvring bench` works: directories and block devices of its own, and what killed runs left.

A directory of a run has a marker in it, which its process keeps locked. Only a directory with a
marker that nobody holds is removed: whoever made it is dead. A device is told by what is on it.
"""

import errno
import fcntl
import json
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kvring import InUseError, KvRingError
from kvring._native import StoredChunks

_PREFIX = "kvring-bench-"
_MARKER = "kvring-bench.owner"
_MADE_BY = "kvring bench"
# Namespace of every key that a run stores.
_NAMESPACE = "kvring-bench"

# The superblock of a device, and its copy in the last block of the first MiB
# (docs/explanation/format.md).
_HEAD_BYTES = 1 << 20
_SUPERBLOCKS = (0, _HEAD_BYTES - 4096)
_MAGIC = b"KVRINGDV"
_MOST_MARKER_BYTES = 4096
_BUSY_DEADLINE_S = 10.0
# stat(2)
_STAT_BLOCK_BYTES = 512

_Tell = Callable[[str], None]


class PlaceError(Exception):
    """A place cannot be worked in; the message tells the way out."""


def size_bytes(device: Path) -> int:
    """Return the length of a block device."""
    with device.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def taken_on_disk(directory: Path) -> int:
    """Return the bytes that a directory and all below it take on disk."""
    blocks = 0
    for file in directory.rglob("*"):
        # An owner that is at work removes files meanwhile.
        with suppress(FileNotFoundError):
            blocks += file.lstat().st_blocks
    return blocks * _STAT_BLOCK_BYTES


@contextmanager
def own_places(paths: list[Path], tell: _Tell) -> Iterator[list[Path]]:
    """Have a new directory below each directory, and each block device, for a run alone.

    The directories are removed at the end, and the devices made blank. What killed runs left there
    is removed first; what may be such a thing and is left alone is told.

    Args:
        paths: Directories and block devices.
        tell: Called with a sentence for each thing that was found.

    Raises:
        PlaceError: A device holds a store, or no directory can be made.
    """
    with ExitStack() as stack:
        places = []
        for path in paths:
            if path.is_block_device():
                places.append(stack.enter_context(_own_device(path, tell)))
            else:
                _remove_left_overs(path, tell)
                places.append(stack.enter_context(own_directory(path)))
        yield places


@contextmanager
def own_directory(parent: Path) -> Iterator[Path]:
    """Make a directory for this process alone below another one, and remove it at the end.

    Raises:
        PlaceError: It cannot be made.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise PlaceError(
            f"cannot make a directory in {str(parent)!r}: {error.strerror}; name another"
        ) from error
    try:
        with (directory / _MARKER).open("x", encoding="utf-8") as marker:
            # Before anything is in it: an empty marker is nobody's.
            fcntl.flock(marker, fcntl.LOCK_EX)
            owner = {"made_by": _MADE_BY, "process_id": os.getpid(), "host": platform.node()}
            json.dump(owner, marker)
            marker.flush()
            yield directory
    finally:
        shutil.rmtree(directory)


def _remove_left_overs(parent: Path, tell: _Tell) -> None:
    try:
        found = [path for path in parent.iterdir() if path.name.startswith(_PREFIX)]
    except OSError:
        # It may be written to all the same.
        return
    for path in sorted(found):
        _remove_left_over(path, tell)


def _remove_left_over(path: Path, tell: _Tell) -> None:
    try:
        _remove_if_dead(path, tell)
    except OSError as error:
        tell(f"{path} is left alone: {error.strerror}")


def _remove_if_dead(path: Path, tell: _Tell) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with ExitStack() as stack:
        try:
            directory = os.open(path, flags | os.O_DIRECTORY)
            stack.callback(os.close, directory)
            marker = os.open(_MARKER, flags, dir_fd=directory)
            stack.callback(os.close, marker)
        except FileNotFoundError:
            tell(f"{path} is left alone: nothing tells that kvring bench has made it")
            return
        found = os.fstat(marker)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not is_own or os.fstat(directory).st_uid != os.geteuid():
            tell(f"{path} is left alone: it belongs to somebody else")
            return
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Its run goes on.
            return
        owner = _owner(os.read(marker, _MOST_MARKER_BYTES))
        if owner is None:
            tell(f"{path} is left alone: nothing tells that kvring bench has made it")
            return
        process_id, host = owner
        if host != platform.node():
            tell(f"{path} is left alone: it was made by process {process_id} on host {host}")
            return
        shutil.rmtree(path)
        tell(f"removed {path}, which process {process_id} left")


def _owner(marker: bytes) -> tuple[int, str] | None:
    try:
        found = json.loads(marker)
        if found["made_by"] == _MADE_BY:
            return int(found["process_id"]), str(found["host"])
    except (ValueError, TypeError, KeyError):
        pass
    return None


@contextmanager
def _own_device(path: Path, tell: _Tell) -> Iterator[Path]:
    if _has_store(path):
        if not _is_left_over(path):
            raise PlaceError(
                f"--path {str(path)!r} holds a store that kvring bench did not make; "
                f"name another device; to erase this one, zero its first MiB"
            )
        _erase(path)
        tell(f"removed the store on {path}, which an earlier run left")
    is_ours = True
    try:
        yield path
    except InUseError:
        is_ours = False
        raise
    finally:
        # It had none before.
        if is_ours and _has_store(path):
            _erase(path)


def _has_store(device: Path) -> bool:
    """Tell whether there is a superblock, whole or not."""
    with device.open("rb", buffering=0) as file:
        return any(
            os.pread(file.fileno(), len(_MAGIC), offset) == _MAGIC for offset in _SUPERBLOCKS
        )


def _is_left_over(device: Path) -> bool:
    """Tell whether it holds chunks of kvring bench, and no others."""
    with suppress(KvRingError, OSError):
        chunks = StoredChunks(device)
        namespaces = {chunk["namespace"] for chunk in chunks}
        return namespaces == {_NAMESPACE} and not chunks.damage()
    return False


def _erase(device: Path) -> None:
    """Zero the first MiB, so that the device counts as blank again; refused while it is in use."""
    deadline_s = time.monotonic() + _BUSY_DEADLINE_S
    while True:
        try:
            # As a mount does: nobody else has it then.
            file = os.open(device, os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if time.monotonic() > deadline_s:
                message = f"--path {str(device)!r} is in use; release it there, or name another"
                raise PlaceError(message) from error
            # The kernel may need a moment to let it go.
            time.sleep(0.05)
    try:
        os.pwrite(file, bytes(_HEAD_BYTES), 0)
        os.fsync(file)
    finally:
        os.close(file)
