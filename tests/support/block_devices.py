"""Loop and zram devices, mounts, and how each is undone, whatever happens in between."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

DIRECTORY_PREFIX = "kvring-compare-"
_LEFT_FREE_BYTES = 20 << 30
_ZERO_SIZE_BYTES = 4 << 20
_UNDO_TIMEOUT_S = 60.0
_UNDO_PAUSE_S = 0.2
ZRAM_CONTROL = Path("/sys/class/zram-control")


class DeviceError(RuntimeError):
    """A device could not be made. The message says what to do."""


def temporary_directory(stack: ExitStack, parent: Path) -> Path:
    """Make a directory that is removed with the stack."""
    made = tempfile.TemporaryDirectory(
        prefix=DIRECTORY_PREFIX, dir=parent, ignore_cleanup_errors=True
    )
    return Path(stack.enter_context(made))


def require(*tools: str) -> None:
    """Raise DeviceError unless this is root and has the tools."""
    if os.geteuid() != 0:
        raise DeviceError("it needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            raise DeviceError(f"it needs {tool}: install util-linux, e2fsprogs, xfsprogs")


def require_free_space(parent: Path, size_bytes: int) -> None:
    """Raise DeviceError unless enough is left free on the disk."""
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < size_bytes + _LEFT_FREE_BYTES:
        raise DeviceError(
            f"it needs {size_bytes / 1e9:.0f} GB and {_LEFT_FREE_BYTES / 1e9:.0f} GB left free, "
            f"and there are {free_bytes / 1e9:.0f} GB"
        )


def attach_loop(
    stack: ExitStack,
    image: Path,
    size_bytes: int,
    *losetup_options: str,
    is_sparse: bool = False,
) -> Path:
    """Write a file and put a loop device with direct I/O over it, until the stack ends."""
    stack.callback(_remove, image)
    if is_sparse:
        with image.open("wb") as file:
            file.truncate(size_bytes)
    else:
        _write_zeros(image, size_bytes)
    return attach_loop_over(stack, image, *losetup_options)


def attach_loop_over(stack: ExitStack, image: Path, *losetup_options: str) -> Path:
    """Put a loop device with direct I/O over a file that is there, until the stack ends.

    A device that is detached while it is open goes with the last descriptor or mount: also where
    this process is killed.
    """
    options = ("--find", "--show", "--direct-io=on", *losetup_options)
    loop = run("losetup", *options, str(image)).strip()
    stack.callback(os.close, os.open(loop, os.O_RDONLY))
    run("losetup", "--detach", loop)
    settings = Path("/sys/block") / Path(loop).name
    if (settings / "loop" / "dio").read_text(encoding="ascii").strip() != "1":
        raise DeviceError(f"{loop} has no direct I/O here: the file system below it can't do it")
    # A number that was used before keeps what was set then: neighbours are merged, as by default.
    nomerges = settings / "queue" / "nomerges"
    if nomerges.read_text(encoding="ascii").strip() != "0":
        nomerges.write_text("0", encoding="ascii")
    return Path(loop)


def _remove(image: Path) -> None:
    # Gone already, or on a file system that has failed: its directory goes with that.
    with suppress(OSError):
        image.unlink()


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


def add_zram(stack: ExitStack, size_bytes: int) -> Path:
    """Make a zram device of its own, until the stack ends."""
    # Reading this file makes a new device and tells its number.
    number = (ZRAM_CONTROL / "hot_add").read_text(encoding="ascii").strip()
    stack.callback(patiently, _remove_zram, number)
    _write_attribute(Path(f"/sys/block/zram{number}/disksize"), str(size_bytes))
    block = Path(f"/dev/zram{number}")
    if not block.exists():
        raise DeviceError(f"{block} does not appear in /dev: make it with mknod, or mount devtmpfs")
    return block


def _remove_zram(number: str) -> None:
    if not Path(f"/sys/block/zram{number}").exists():
        return
    _write_attribute(Path(f"/sys/block/zram{number}/reset"), "1")
    _write_attribute(ZRAM_CONTROL / "hot_remove", number)


def _write_attribute(attribute: Path, text: str) -> None:
    try:
        attribute.write_text(text, encoding="ascii")
    except OSError as error:
        raise DeviceError(f"{attribute}: {error.strerror}") from error


def mount(stack: ExitStack, make: tuple[str, ...], block: Path, mount_point: Path) -> Path:
    """Make a file system, mount it until the stack ends, and return a directory in it."""
    run(*make, str(block))
    run("mount", str(block), str(mount_point))
    stack.callback(patiently, run, "umount", str(mount_point))
    directory = mount_point / "data"
    directory.mkdir()
    return directory


def mount_tmpfs(stack: ExitStack, size_bytes: int, mount_point: Path) -> Path:
    """Mount an empty tmpfs until the stack ends, and return the directory that it is."""
    run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mount_point))
    stack.callback(patiently, run, "umount", str(mount_point))
    return mount_point


def patiently(undo: Callable[..., object], *arguments: str) -> None:
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


def run(*command: str) -> str:
    """Run a command and return its output; raise DeviceError with what it says if it fails."""
    # In a session of its own: Ctrl-C at the terminal must not end a umount that cleans up.
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode != 0:
        raise DeviceError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
