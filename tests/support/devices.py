"""Where to measure: file systems and bare block devices, removed afterwards whatever happens."""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.block_devices import (
    DIRECTORY_PREFIX,
    ZRAM_CONTROL,
    add_zram,
    attach_loop,
    mount,
    require,
    require_free_space,
    temporary_directory,
)
from tests.support.block_devices import DeviceError as DeviceError

EXT4_LOOP = "ext4-loop"
XFS_ZRAM = "xfs-zram"

# A discard would punch holes into the image, and the puts would pay for filling them.
_MAKE_FILE_SYSTEM = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}


# linux/include/uapi/linux/ext4.h; without a flush of the journal.
_EXT4_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSH = struct.pack("I", 2)


@dataclass(frozen=True)
class Device:
    """A directory to measure in, what it stands on, and a bare device of the same kind."""

    name: str
    directory: Path
    raw_device: Path | None = None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def bare_facts(self) -> dict[str, str]:
        """What describes the bare device."""
        over = {key: value for key, value in self.facts.items() if key == "over"}
        return {"name": "bare", **over}


@contextmanager
def directory_device(parent: Path) -> Iterator[Device]:
    """Make an empty directory on the file system that holds `parent`. It has no bare device."""
    if not parent.is_dir():
        raise DeviceError(f"{parent} is not a directory: make it first, or name another --path")
    with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX, dir=parent) as directory:
        yield Device("directory", Path(directory), None, _file_system_facts(Path(directory)))


@contextmanager
def loop_device(
    parent: Path, file_system: str, size_bytes: int, *mkfs_options: str
) -> Iterator[Device]:
    """Make a fresh file system on a loop device with direct I/O over a file.

    Args:
        parent: An existing directory on the disk to use.
        file_system: "ext4" (with a journal) or "xfs".
        size_bytes: Size of the file; xfs takes 300 MiB or more.
        mkfs_options: Further arguments for the tool that makes the file system.

    Yields:
        The device.

    Raises:
        DeviceError: It cannot be had here; the message says why.
    """
    make = _MAKE_FILE_SYSTEM[file_system]
    require("losetup", make[0], "mount", "umount")
    with ExitStack() as stack:
        work = temporary_directory(stack, parent)
        block = attach_loop(stack, work / "file-system.image", size_bytes)
        directory = mount(stack, (*make, *mkfs_options), block, temporary_directory(stack, work))
        yield Device(f"{file_system}-loop", directory, None, _file_system_facts(directory))


@dataclass(frozen=True)
class LoopPair:
    """Two loop devices with direct I/O: one for a file system, one to be used bare."""

    work: Path
    block: Path
    raw_device: Path


@contextmanager
def loop_pair(parent: Path, size_bytes: int, raw_size_bytes: int) -> Iterator[LoopPair]:
    """Make two loop devices over files, which are written once: that takes a while.

    Args:
        parent: An existing directory on the disk to use.
        size_bytes: Size of the one for a file system.
        raw_size_bytes: Size of the bare one.

    Yields:
        Both.

    Raises:
        DeviceError: They cannot be had here; the message says why.
    """
    require("losetup", "mkfs.ext4", "mount", "umount")
    require_free_space(parent, size_bytes + raw_size_bytes)
    # Each step is undone in reverse order, also when a later one, or the work on it, fails.
    with ExitStack() as stack:
        work = temporary_directory(stack, parent)
        block = attach_loop(stack, work / "file-system.image", size_bytes)
        raw_device = attach_loop(stack, work / "raw.image", raw_size_bytes)
        yield LoopPair(work, block, raw_device)


@contextmanager
def loop_block(parent: Path, size_bytes: int) -> Iterator[Path]:
    """Make one loop device over a file, which is written once: that takes a while.

    Raises:
        DeviceError: It cannot be had here; the message says why.
    """
    require("losetup", "mkfs.ext4", "mount", "umount")
    require_free_space(parent, size_bytes)
    with ExitStack() as stack:
        work = temporary_directory(stack, parent)
        yield attach_loop(stack, work / "block.image", size_bytes)


@contextmanager
def ext4_loop_device(pair: LoopPair) -> Iterator[Device]:
    """Make a fresh ext4, with journal, on a loop device, and mount it."""
    with ext4_on(pair.block, pair.work) as directory:
        below = _file_system_facts(pair.work)["file_system"]
        facts = _file_system_facts(directory) | {
            "over": f"a loop device with direct I/O over a written file on {below}"
        }
        yield Device(EXT4_LOOP, directory, pair.raw_device, facts)


@contextmanager
def ext4_on(block: Path, parent: Path, *mkfs_options: str) -> Iterator[Path]:
    """Make a fresh ext4 on a block device, mount it below `parent`, and yield a directory in it."""
    with ExitStack() as stack:
        make = (*_MAKE_FILE_SYSTEM["ext4"], *mkfs_options)
        yield mount(stack, make, block, temporary_directory(stack, parent))


class FailingDisk:
    """A bare loop device of which the file system below can be made to give up."""

    def __init__(self, raw_device: Path, below: Path) -> None:
        """Take the device, and a directory on the file system that its image lies on."""
        self.raw_device = raw_device
        self._below = below

    def fail(self) -> None:
        """Make every transfer from now on an EIO."""
        shut_down(self._below)


def shut_down(directory: Path) -> None:
    """Make the ext4 or XFS that holds a directory give up, as after a fatal error of its device."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, _WITHOUT_FLUSH)
    finally:
        os.close(descriptor)


@contextmanager
def failing_disk(block: Path, parent: Path, size_bytes: int) -> Iterator[FailingDisk]:
    """Make a bare device that can fail, over a file on an ext4 on a block device."""
    # Without a journal it can be unmounted after it has given up.
    with ext4_on(block, parent, "-O", "^has_journal") as below, ExitStack() as stack:
        yield FailingDisk(attach_loop(stack, below / "failing.image", size_bytes), below)


@contextmanager
def xfs_zram_device(parent: Path, size_bytes: int, raw_size_bytes: int) -> Iterator[Device]:
    """Make a fresh XFS, and a bare device, each on a zram device of its own.

    Only same-filled pages may be written in bulk: others would take memory.

    Args:
        parent: An existing directory, for the mount point.
        size_bytes: Size of the file system, at least 300 MiB.
        raw_size_bytes: Size of the bare device.

    Yields:
        The device.

    Raises:
        DeviceError: It cannot be had here; the message says why.
    """
    make = _MAKE_FILE_SYSTEM["xfs"]
    require(make[0], "mount", "umount")
    if not (ZRAM_CONTROL / "hot_add").exists():
        raise DeviceError("this kernel has no zram, or its module is not loaded (modprobe zram)")
    with ExitStack() as stack:
        mount_point = temporary_directory(stack, parent)
        block = add_zram(stack, size_bytes)
        raw = add_zram(stack, raw_size_bytes)
        directory = mount(stack, make, block, mount_point)
        facts = _file_system_facts(directory) | {"over": "zram, every page same-filled"}
        yield Device(XFS_ZRAM, directory, raw, facts)


def _file_system_facts(directory: Path) -> dict[str, str]:
    """Find the mount that a directory is on."""
    resolved = directory.resolve()
    best: tuple[str, str, str] = ("", "unknown", "")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount_point, file_system, options, *_ = line.split()
        if resolved.is_relative_to(mount_point) and len(mount_point) >= len(best[0]):
            best = (mount_point, file_system, options)
    return {"file_system": best[1], "mount_options": best[2]}
