"""What a directory takes on disk, now and at most."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def disk_bytes(directory: Path) -> int:
    """Return what everything in a directory takes on disk, directories below it included.

    Files come and go while it is looked at: what is there twice was there in between, all of it
    at once.
    """
    before, after = _sizes_bytes(directory), _sizes_bytes(directory)
    return sum(min(size, after[path]) for path, size in before.items() if path in after)


def _sizes_bytes(directory: Path | str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for entry in os.scandir(directory):
        # A file that goes away meanwhile takes nothing.
        with suppress(FileNotFoundError):
            sizes[entry.path] = entry.stat(follow_symlinks=False).st_blocks * 512
            if entry.is_dir(follow_symlinks=False):
                sizes |= _sizes_bytes(entry.path)
    return sizes


@contextmanager
def most_disk_bytes(directory: Path) -> Iterator[list[int]]:
    """Look at the disk all the time; the one number in the list is the most there ever was."""
    most = [0]
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            most[0] = max(most[0], disk_bytes(directory))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()
        most[0] = max(most[0], disk_bytes(directory))
