"""Looks at disks that may be stuck: each in a process of its own, which is left behind if need be.

Nothing ends a process that waits for a disk, and no thread either. What is asked of the disk here
comes back in time; a process that is left behind ends when the disk answers, or at the next boot.
"""

import errno
import mmap
import os
import pickle
import select
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from kvring.owner_address import CHUNKS_NAME, DATA_NAME, INDEX_NAME, Place, look_at

__all__ = [
    "BoundedLook",
    "check_disk",
    "check_not_frozen",
    "place_of",
    "read_head",
    "wait_for_thaw",
]

# A disk that works answers one read in far less, also under load.
_DEADLINE_S: Final = 5.0

# Where the process of a look writes to, behind its standard streams.
_ANSWER: Final = 3

_T = TypeVar("_T")


class BoundedLook(Generic[_T]):
    """One look at a disk, under way."""

    def __init__(self, look: Callable[[], _T]) -> None:
        """Begin it; what it returns or raises must be such that it can be pickled."""
        self._answer, child_end = os.pipe()
        with warnings.catch_warnings():
            # The child takes no lock that another thread of this process may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process_id = os.fork()
        if self._process_id == 0:
            _look_and_exit(look, child_end)
        os.close(child_end)
        self._received = bytearray()

    def result(self, deadline_s: float) -> _T:
        """Wait for it, for so long; ask again later if it is not there.

        Raises:
            TimeoutError: The disk did not answer.
            Exception: What the look has raised.
        """
        poll = select.poll()
        poll.register(self._answer, select.POLLIN)
        while poll.poll(deadline_s * 1000):
            part = os.read(self._answer, 1 << 16)
            if not part:
                return self._ended()
            self._received += part
        raise TimeoutError

    def _ended(self) -> _T:
        os.close(self._answer)
        os.waitpid(self._process_id, 0)
        if not self._received:
            raise OSError("the process that looks at the disk was killed")
        answer, error = pickle.loads(self._received)
        if error is not None:
            raise error
        result: _T = answer
        return result


def _look_and_exit(look: Callable[[], Any], answer: int) -> None:
    """Send what a look returns or raises, and end this process, whatever happens."""
    try:
        # Nothing of the parent's may stay open with this process.
        os.dup2(answer, _ANSWER)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(_ANSWER):
            os.dup2(nothing, standard)
        os.closerange(_ANSWER + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            document = pickle.dumps((look(), None))
        except Exception as error:  # noqa: BLE001 - it is raised by the parent
            document = pickle.dumps((None, error))
        while document:
            document = document[os.write(_ANSWER, document) :]
    finally:
        os._exit(0)


# Of looks that were not answered yet, so that there is one process for each path, and not more.
_pending: dict[tuple[str, Path], BoundedLook[Any]] = {}


def _within(what: str, path: Path, look: Callable[[], _T], trouble: str = "") -> _T:
    if (what, path) not in _pending:
        _pending[what, path] = BoundedLook(look)
    under_way: BoundedLook[_T] = _pending.pop((what, path))
    try:
        return under_way.result(_DEADLINE_S)
    except TimeoutError:
        _pending[what, path] = under_way
        message = trouble or (
            f"the disk below {path} did not answer in {_DEADLINE_S:g} s: dmesg tells of its device"
        )
        raise TimeoutError(message) from None


def place_of(path: Path, index_path: Path | None) -> Place:
    """Look at the path of a store.

    Raises:
        TimeoutError: The disk does not answer.
        FileNotFoundError: There is no store.
        OSError: The disk does not tell.
    """
    return _within("place", path, lambda: look_at(path, index_path))


def check_disk(path: Path) -> None:
    """Go on if the disk answers, with an error or without.

    Raises:
        TimeoutError: It does not.
    """
    try:
        _within("read", path, lambda: read_head(path))
    except TimeoutError:
        raise
    except OSError:
        # Whoever reads on says it better.
        return


def check_not_frozen(path: Path) -> None:
    """Go on if the file system of a store takes changes, or refuses them at once.

    Raises:
        TimeoutError: They wait.
    """
    trouble = (
        f"the file system of {path} took no change for {_DEADLINE_S:g} s: it is frozen, or its "
        "drive answers no write; fsfreeze --unfreeze thaws it, and dmesg tells of its device"
    )
    _within("change", path, lambda: wait_for_thaw(path), trouble)


def wait_for_thaw(directory: Path) -> None:
    """Ask for a change that is none, of the directory of an index.

    It waits while the file system is frozen. Else it is refused: `rmdir` removes no file.
    """
    with suppress(OSError):
        # That of a device beside the indexes of others has a name of its own.
        for index in directory.glob("index*.kvring"):
            if index.is_file():
                index.rmdir()


def _file_of_chunks(path: Path) -> Path:
    data = path / DATA_NAME
    found = (data,) if data.exists() else (path / CHUNKS_NAME).glob("*/*")
    return next(iter(found), path / INDEX_NAME)


def read_head(path: Path) -> None:
    """Read a block of a store from its drive, past the page cache where that can be.

    Not of the index, unless there is nothing else: on a disk that is stuck the read would keep the
    inode locked, and the owner could not write its index.

    A directory in the place of a file is no fault of the drive.

    Raises:
        OSError: It cannot be read.
    """
    file = path if path.is_block_device() else _file_of_chunks(path)
    # Nobody writes into a FIFO in its place.
    flags = os.O_RDONLY | os.O_NONBLOCK
    try:
        descriptor = os.open(file, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.open(file, flags)
    # O_DIRECT takes memory that begins at a page.
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            with suppress(IsADirectoryError):
                os.readv(descriptor, [memory])
        finally:
            os.close(descriptor)
