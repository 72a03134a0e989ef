"""Where to measure: file systems and bare block devices, removed afterwards whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_DIRECTORY_PREFIX = "kvring-compare-"
_LEFT_FREE_BYTES = 20 << 30
_ZERO_SIZE_BYTES = 4 << 20
_UNDO_TIMEOUT_S = 30.0
_UNDO_PAUSE_S = 0.2
_ZRAM_CONTROL = Path("/sys/class/zram-control")

EXT4_LOOP = "ext4-loop"
XFS_ZRAM = "xfs-zram"


@dataclass(frozen=True)
class Device:
    """A directory to measure in, what it stands on, and a bare device of the same kind."""

    name: str
    directory: Path
    raw_device: Path | None = None
    facts: dict[str, str] = field(default_factory=dict)


class DeviceError(RuntimeError):
    """A device could not be made. The message says what to do."""


@contextmanager
def directory_device(parent: Path) -> Iterator[Device]:
    """Make an empty directory on the file system that holds `parent`. It has no bare device."""
    if not parent.is_dir():
        raise DeviceError(f"{parent} is not a directory: make it first, or name another --path")
    with tempfile.TemporaryDirectory(prefix=_DIRECTORY_PREFIX, dir=parent) as directory:
        yield Device("directory", Path(directory), None, _file_system_facts(Path(directory)))


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
    _require("losetup", "mkfs.ext4", "mount", "umount")
    _require_free_space(parent, size_bytes + raw_size_bytes)
    # Each step is undone in reverse order, also when a later one, or the work on it, fails.
    with ExitStack() as stack:
        work = _temporary_directory(stack, parent)
        block = _attach_loop(stack, work / "file-system.image", size_bytes)
        raw_device = _attach_loop(stack, work / "raw.image", raw_size_bytes)
        yield LoopPair(work, block, raw_device)


@contextmanager
def ext4_loop_device(pair: LoopPair) -> Iterator[Device]:
    """Make a fresh ext4, with journal, on a loop device, and mount it."""
    # A discard would punch holes into the image, and the puts would pay for filling them.
    make = ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")
    with ExitStack() as stack:
        mount_point = _temporary_directory(stack, pair.work)
        directory = _mount(stack, make, pair.block, mount_point)
        below = _file_system_facts(pair.work)["file_system"]
        facts = _file_system_facts(directory) | {
            "over": f"a loop device with direct I/O over a written file on {below}"
        }
        yield Device(EXT4_LOOP, directory, pair.raw_device, facts)


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
    make = ("mkfs.xfs", "-q", "-f", "-K")
    _require(make[0], "mount", "umount")
    if not (_ZRAM_CONTROL / "hot_add").exists():
        raise DeviceError("this kernel has no zram, or its module is not loaded (modprobe zram)")
    with ExitStack() as stack:
        mount_point = _temporary_directory(stack, parent)
        block = _add_zram(stack, size_bytes)
        raw = _add_zram(stack, raw_size_bytes)
        directory = _mount(stack, make, block, mount_point)
        facts = _file_system_facts(directory) | {"over": "zram, every page same-filled"}
        yield Device(XFS_ZRAM, directory, raw, facts)


def _temporary_directory(stack: ExitStack, parent: Path) -> Path:
    made = tempfile.TemporaryDirectory(
        prefix=_DIRECTORY_PREFIX, dir=parent, ignore_cleanup_errors=True
    )
    return Path(stack.enter_context(made))


def _require(*tools: str) -> None:
    if os.geteuid() != 0:
        raise DeviceError("it needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            raise DeviceError(f"it needs {tool}: install util-linux, e2fsprogs, xfsprogs")


def _require_free_space(parent: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < size_bytes + _LEFT_FREE_BYTES:
        raise DeviceError(
            f"it needs {size_bytes / 1e9:.0f} GB and {_LEFT_FREE_BYTES / 1e9:.0f} GB left free, "
            f"and there are {free_bytes / 1e9:.0f} GB"
        )


def _attach_loop(stack: ExitStack, image: Path, size_bytes: int) -> Path:
    stack.callback(image.unlink, missing_ok=True)
    _write_zeros(image, size_bytes)
    loop = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
    stack.callback(_patiently, _run, "losetup", "--detach", loop)
    state = Path("/sys/block") / Path(loop).name / "loop" / "dio"
    if state.read_text(encoding="ascii").strip() != "1":
        raise DeviceError(f"{loop} has no direct I/O here: the file system below it can't do it")
    return Path(loop)


def _write_zeros(image: Path, size_bytes: int) -> None:
    """Write the file once: blocks only allocated would make the first write to each one slow."""
    with image.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        zeros = memoryview(bytes(_ZERO_SIZE_BYTES))
        left_bytes = size_bytes
        while left_bytes > 0:
            left_bytes -= file.write(zeros[: min(left_bytes, _ZERO_SIZE_BYTES)])
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _add_zram(stack: ExitStack, size_bytes: int) -> Path:
    # Reading this file makes a new device and tells its number.
    number = (_ZRAM_CONTROL / "hot_add").read_text(encoding="ascii").strip()
    stack.callback(_patiently, _remove_zram, number)
    _write_attribute(Path(f"/sys/block/zram{number}/disksize"), str(size_bytes))
    block = Path(f"/dev/zram{number}")
    if not block.exists():
        raise DeviceError(f"{block} does not appear in /dev: make it with mknod, or mount devtmpfs")
    return block


def _remove_zram(number: str) -> None:
    if not Path(f"/sys/block/zram{number}").exists():
        return
    _write_attribute(Path(f"/sys/block/zram{number}/reset"), "1")
    _write_attribute(_ZRAM_CONTROL / "hot_remove", number)


def _write_attribute(attribute: Path, text: str) -> None:
    try:
        attribute.write_text(text, encoding="ascii")
    except OSError as error:
        raise DeviceError(f"{attribute}: {error.strerror}") from error


def _mount(stack: ExitStack, make: tuple[str, ...], block: Path, mount_point: Path) -> Path:
    _run(*make, str(block))
    _run("mount", str(block), str(mount_point))
    stack.callback(_patiently, _run, "umount", str(mount_point))
    directory = mount_point / "data"
    directory.mkdir()
    return directory


def _patiently(undo: Callable[..., object], *arguments: str) -> None:
    """Undo a step, for a while again and again.

    The kernel lets go of a ring, and of the files in it, some time after its process has closed it.
    What can't be undone is said and not raised: what was measured stays good.
    """
    ends_s = time.monotonic() + _UNDO_TIMEOUT_S
    while True:
        error = _attempt(undo, *arguments)
        if error is None:
            return
        if time.monotonic() >= ends_s:
            print(f"compare: can't clean up, do it by hand: {error}", file=sys.stderr)
            return
        time.sleep(_UNDO_PAUSE_S)


def _attempt(undo: Callable[..., object], *arguments: str) -> DeviceError | None:
    try:
        undo(*arguments)
    except DeviceError as error:
        return error
    return None


def _file_system_facts(directory: Path) -> dict[str, str]:
    """Find the mount that a directory is on."""
    resolved = directory.resolve()
    best: tuple[str, str, str] = ("", "unknown", "")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount_point, file_system, options, *_ = line.split()
        if resolved.is_relative_to(mount_point) and len(mount_point) >= len(best[0]):
            best = (mount_point, file_system, options)
    return {"file_system": best[1], "mount_options": best[2]}


def _run(*command: str) -> str:
    # In a session of its own: Ctrl-C at the terminal must not end a umount that cleans up.
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode != 0:
        raise DeviceError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
