"""Where to measure: file systems and bare block devices, removed afterwards whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_DIRECTORY_PREFIX = "kvring-compare-"
_LEFT_FREE_BYTES = 20 << 30
_ZERO_SIZE_BYTES = 4 << 20
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


@contextmanager
def ext4_loop_device(parent: Path, size_bytes: int, raw_size_bytes: int) -> Iterator[Device]:
    """Make a fresh ext4 with journal, and a bare device, each on a loop device over a file.

    Args:
        parent: An existing directory on the disk to use.
        size_bytes: Size of the file system.
        raw_size_bytes: Size of the bare device.

    Yields:
        The device.

    Raises:
        DeviceError: It cannot be had here; the message says why.
    """
    # A discard would punch holes into the image, and the puts would pay for filling them.
    make = ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")
    _require("losetup", make[0], "mount", "umount")
    _require_free_space(parent, size_bytes + raw_size_bytes)
    # Each step is undone in reverse order, also when a later one, or the work on it, fails.
    with ExitStack() as stack:
        work = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=_DIRECTORY_PREFIX, dir=parent))
        )
        loop = _attach_loop(stack, work / "file-system.image", size_bytes)
        raw = _attach_loop(stack, work / "raw.image", raw_size_bytes)
        directory = _mount(stack, make, loop, work / "mount")
        facts = _file_system_facts(directory) | {
            "over": f"a loop device with direct I/O over a written file on "
            f"{_file_system_facts(work)['file_system']}",
            "size_bytes": str(size_bytes),
        }
        yield Device(EXT4_LOOP, directory, raw, facts)


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
        work = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=_DIRECTORY_PREFIX, dir=parent))
        )
        block = _add_zram(stack, size_bytes)
        raw = _add_zram(stack, raw_size_bytes)
        directory = _mount(stack, make, block, work / "mount")
        facts = _file_system_facts(directory) | {
            "over": "zram, every page same-filled",
            "size_bytes": str(size_bytes),
        }
        yield Device(XFS_ZRAM, directory, raw, facts)


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
    stack.callback(_run, "losetup", "--detach", loop)
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
    stack.callback(_remove_zram, number)
    _write_attribute(Path(f"/sys/block/zram{number}/disksize"), str(size_bytes))
    block = Path(f"/dev/zram{number}")
    if not block.exists():
        raise DeviceError(f"{block} does not appear in /dev: make it with mknod, or mount devtmpfs")
    return block


def _remove_zram(number: str) -> None:
    _write_attribute(Path(f"/sys/block/zram{number}/reset"), "1")
    _write_attribute(_ZRAM_CONTROL / "hot_remove", number)


def _write_attribute(attribute: Path, text: str) -> None:
    try:
        attribute.write_text(text, encoding="ascii")
    except OSError as error:
        raise DeviceError(f"{attribute}: {error.strerror}") from error


def _mount(stack: ExitStack, make: tuple[str, ...], block: Path, mount_point: Path) -> Path:
    _run(*make, str(block))
    mount_point.mkdir()
    _run("mount", str(block), str(mount_point))
    stack.callback(_unmount, mount_point)
    directory = mount_point / "data"
    directory.mkdir()
    return directory


def _unmount(mount_point: Path) -> None:
    try:
        _run("umount", str(mount_point))
    except DeviceError:
        # Something still holds a file open: detach now, the kernel finishes when it lets go.
        _run("umount", "--lazy", str(mount_point))


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
