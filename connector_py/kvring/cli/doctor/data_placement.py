"""Write streams of a drive, which are NVMe flexible data placement (FDP), and what it wrote."""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvring.cli.doctor.findings import Finding, Level
from kvring.cli.output import size_text

__all__ = ["PlacementStatistics", "look_at_placement"]

_CHECK = "write streams"
# That of the index, and two that keep chunks apart.
_FEWEST = 3

# linux/nvme_ioctl.h: opcode to cdw3, metadata, address, their lengths, cdw10 to 15, time, result.
_COMMAND = struct.Struct("<BBHIIIQQII6III")
_NVME_IOCTL_ID = 0x4E40
_NVME_IOCTL_ADMIN_CMD = 0xC0484E41
_GET_LOG_PAGE = 0x02
_IDENTIFY = 0x06
_NAMESPACE_BYTES = 4096
# In the description of a namespace: the endurance group that it is of.
_ENDURANCE_GROUP = struct.Struct("<102xH")
_STATISTICS_PAGE = 0x22
_STATISTICS = struct.Struct("<16s16s16s16x")


class PlacementStatistics(NamedTuple):
    """What an endurance group of a drive has counted in its life, in bytes."""

    host_bytes: int
    media_bytes: int

    @classmethod
    def of(cls, page: bytes) -> "PlacementStatistics":
        """Read the log page "FDP Statistics" of the NVMe base specification 2.1."""
        host, media, _erased = _STATISTICS.unpack(page[: _STATISTICS.size])
        return cls(int.from_bytes(host, "little"), int.from_bytes(media, "little"))

    def __str__(self) -> str:
        """Return both, and what they make."""
        both = f"{size_text(self.host_bytes)} written by hosts, {size_text(self.media_bytes)} to"
        ratio = self.media_bytes / self.host_bytes if self.host_bytes else 1.0
        return f"{both} flash: write amplification {ratio:.2f}"


def look_at_placement(
    device: Path, drive: Path, file_system: str | None, *, is_partition: bool
) -> Iterator[Finding]:
    """Look at the write streams of what a path is on.

    Args:
        device: Directory in sysfs of the block device that the path is, or lies on.
        drive: That of a drive below it.
        file_system: What kind is on the device; None if kvring has it without one.
        is_partition: Whether the path is one.
    """
    text = _text(device / "queue" / "max_write_streams")
    if not text:
        if drive.name.startswith("nvme"):
            what = "this kernel reports none (Linux 6.16 does): `write_streams` has no effect"
            yield Finding(Level.OK, _CHECK, what)
        return
    count = int(text)
    if count == 0:
        if drive.name.startswith("nvme"):
            what = f"{device.name} has none (NVMe FDP): `write_streams` has no effect"
            yield Finding(Level.OK, _CHECK, what)
        return
    if is_partition:
        what = f"{device.name} has {count}, and a partition of it none"
        remedy = "give kvring the whole drive if `write_streams` is to have an effect"
        yield Finding(Level.NOTE, _CHECK, what, remedy)
        return
    unit_bytes = int(_text(device / "queue" / "write_stream_granularity") or 0)
    what = f"{device.name} has {count}, with reclaim units of {size_text(unit_bytes)}"
    if file_system is not None:
        remedy = "give kvring the bare device if `write_streams` is to have an effect"
        yield Finding(Level.NOTE, _CHECK, f"{what}; {file_system} ignores them", remedy)
    elif count < _FEWEST:
        what = f"{what}: `write_streams` needs {_FEWEST}"
        yield Finding(Level.NOTE, _CHECK, what, "a namespace with more placement handles")
    else:
        yield Finding(Level.OK, _CHECK, f"{what}: `write_streams` can keep chunks apart")
    yield _statistics(drive)


def _statistics(drive: Path) -> Finding:
    check = f"drive {drive.name}"
    try:
        return Finding(Level.OK, check, str(_read_statistics(Path("/dev") / drive.name)))
    except OSError as error:
        what = f"what it wrote to flash is not known: {error.strerror}"
        remedy = "run this as root" if os.geteuid() else ""
        return Finding(Level.NOTE, check, what, remedy)


def _read_statistics(device: Path) -> PlacementStatistics:
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        number = fcntl.ioctl(descriptor, _NVME_IOCTL_ID)
        namespace = _ask(descriptor, _IDENTIFY, number, _NAMESPACE_BYTES, (0, 0))
        (group,) = _ENDURANCE_GROUP.unpack_from(namespace)
        dwords = _STATISTICS.size // 4 - 1
        page = (_STATISTICS_PAGE | dwords << 16, group << 16)
        return PlacementStatistics.of(_ask(descriptor, _GET_LOG_PAGE, 0, _STATISTICS.size, page))
    finally:
        os.close(descriptor)


def _ask(descriptor: int, opcode: int, number: int, size: int, words: tuple[int, int]) -> bytes:
    """Return what the drive answers to an admin command with these first two command words."""
    answer = ctypes.create_string_buffer(size)
    address = ctypes.addressof(answer)
    first = (opcode, 0, 0, number, 0, 0, 0, address, 0, size)
    command = bytearray(_COMMAND.pack(*first, *words, 0, 0, 0, 0, 0, 0))
    status = fcntl.ioctl(descriptor, _NVME_IOCTL_ADMIN_CMD, command)
    if status:
        raise OSError(0, f"the drive answers NVMe status {status:#x}")
    return answer.raw


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
