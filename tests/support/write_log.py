"""A log of the writes and flushes of a block device, and what power loss may leave of that device.

qemu's blklogwrites logs in the format of the kernel's dm-log-writes: a sector that says what it
is, and the bytes of a write behind it.
"""

import os
import random
import struct
from pathlib import Path
from typing import NamedTuple

from tests.support.block_devices import run

SECTOR_BYTES = 512

_FLUSH, _FUA, _DISCARD = 1, 2, 4
# Sector, number of sectors, flags, length of further data (none here).
_ENTRY = struct.Struct("<QQQQ")


class Entry(NamedTuple):
    """A write, discard or flush."""

    log_offset: int
    """Where in the log it begins."""
    offset: int
    length_bytes: int
    flags: int

    @property
    def is_flush(self) -> bool:
        """Whether everything before it is durable."""
        return bool(self.flags & _FLUSH)

    @property
    def is_durable(self) -> bool:
        """Whether it is durable by itself."""
        return bool(self.flags & _FUA)

    @property
    def logged_bytes(self) -> int:
        """How long it is in the log."""
        return SECTOR_BYTES + (0 if self.flags & _DISCARD else self.length_bytes)


class WriteLog:
    """What blklogwrites has logged."""

    def __init__(self, path: Path) -> None:
        """Name the file; it may grow."""
        self.path = path

    def length_bytes(self) -> int:
        """Return how long it is: what was completed up to now is in it."""
        return self.path.stat().st_size

    def entries(self) -> list[Entry]:
        """Return all that is logged."""
        entries: list[Entry] = []
        with self.path.open("rb") as log:
            length_bytes = os.fstat(log.fileno()).st_size
            at = SECTOR_BYTES
            while at + _ENTRY.size <= length_bytes:
                sector, sectors, flags, _ = _ENTRY.unpack(os.pread(log.fileno(), _ENTRY.size, at))
                entry = Entry(at, sector * SECTOR_BYTES, sectors * SECTOR_BYTES, flags)
                entries.append(entry)
                at += entry.logged_bytes
        return entries


class Images:
    """What power loss at one moment after the other leaves on a device."""

    def __init__(
        self,
        log: WriteLog,
        size_bytes: int,
        work: Path,
        *,
        flushes_until_bytes: int | None = None,
    ) -> None:
        """Begin before the first write.

        Args:
            log: The log of the device, complete.
            size_bytes: The size of the device.
            work: A folder for a file of that size.
            flushes_until_bytes: Since the log was this long, flushes have no effect, as of a drive
                that lies.
        """
        self._log = log
        self._entries = log.entries()
        self._durable = work / "durable"
        self._applied = 0
        self._ignored_from = len(self._entries)
        if flushes_until_bytes is not None:
            self._ignored_from = self.moment_of(flushes_until_bytes)
        with self._durable.open("wb") as file:
            file.truncate(size_bytes)

    def moment_of(self, log_bytes: int) -> int:
        """Return how many entries were begun when the log was this long."""
        return sum(entry.log_offset < log_bytes for entry in self._entries)

    def moments(self, chance: random.Random, begin_bytes: int, count: int) -> list[int]:
        """Choose moments since the log was this long, in order."""
        first = self.moment_of(begin_bytes)
        return sorted(chance.randint(first, len(self._entries)) for _ in range(count))

    def log_bytes(self, moment: int) -> int:
        """Return how long the log was then."""
        last = self._entries[moment - 1]
        return last.log_offset + last.logged_bytes

    def make(self, chance: random.Random, moment: int, image: Path) -> None:
        """Write to `image` what may be left, moments in order.

        What was flushed is kept. Of the rest nothing, everything, or some: each sector by itself.
        """
        honoured = range(self._applied, min(moment, self._ignored_from))
        flushes = [at for at in honoured if self._entries[at].is_flush]
        with self._durable.open("r+b") as file:
            for at in range(self._applied, flushes[-1] if flushes else self._applied):
                self._apply(self._entries[at], file.fileno(), None)
        self._applied = flushes[-1] if flushes else self._applied
        run("cp", "--sparse=always", "--reflink=auto", str(self._durable), str(image))
        mood = chance.choice(["none", "all", "some", "some", "some"])
        with image.open("r+b") as file:
            for at, entry in enumerate(self._entries[self._applied : moment], self._applied):
                if mood == "all" or (entry.is_durable and at < self._ignored_from):
                    self._apply(entry, file.fileno(), None)
                elif mood == "some" and (fate := chance.choice(["kept", "dropped", "torn"])):
                    if fate == "kept":
                        self._apply(entry, file.fileno(), None)
                    elif fate == "torn":
                        self._apply(entry, file.fileno(), chance)

    def _apply(self, entry: Entry, file: int, torn_by: random.Random | None) -> None:
        """Do what was logged, or with some of its sectors only."""
        if entry.flags & _DISCARD:
            content = bytes(entry.length_bytes)
        else:
            with self._log.path.open("rb") as log:
                begin = entry.log_offset + SECTOR_BYTES
                content = os.pread(log.fileno(), entry.length_bytes, begin)
        if torn_by is None:
            os.pwrite(file, content, entry.offset)
            return
        for at in range(0, len(content), SECTOR_BYTES):
            if torn_by.random() < 0.5:
                os.pwrite(file, content[at : at + SECTOR_BYTES], entry.offset + at)
