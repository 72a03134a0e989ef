"""Where to measure: a directory on some file system, removed afterwards whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

LOOP_IMAGE_SIZE_BYTES = 12 << 30
_REMOVE_PREFIX = "kvring-compare-"


@dataclass(frozen=True)
class Device:
    """A directory to measure in, and what it stands on."""

    name: str
    directory: Path
    facts: dict[str, str]


class DeviceError(RuntimeError):
    """A device could not be made. The message says what to do."""


@contextmanager
def directory_device(name: str, parent: Path) -> Iterator[Device]:
    """Make an empty directory on the file system that holds `parent`.

    Args:
        name: What to call the device in the report.
        parent: An existing directory.

    Yields:
        The device.
    """
    if not parent.is_dir():
        raise DeviceError(f"{parent} is not a directory: make it first, or name another --path")
    with tempfile.TemporaryDirectory(prefix=_REMOVE_PREFIX, dir=parent) as directory:
        yield Device(name, Path(directory), _file_system_facts(Path(directory)))


# A discard would punch holes into the image, and the puts would pay for filling them.
_MAKE_FILE_SYSTEM = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}


@contextmanager
def loop_device(
    parent: Path,
    file_system: str,
    size_bytes: int = LOOP_IMAGE_SIZE_BYTES,
    *mkfs_options: str,
) -> Iterator[Device]:
    """Make a fresh file system, on a loop device with direct I/O, over a file in `parent`.

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
    if os.geteuid() != 0:
        raise DeviceError("a loop device needs root")
    make = _MAKE_FILE_SYSTEM[file_system]
    for tool in ("losetup", make[0], "mount", "umount"):
        if shutil.which(tool) is None:
            raise DeviceError(
                f"a loop device needs {tool}: install util-linux, e2fsprogs, xfsprogs"
            )
    # Each step is undone in reverse order, also when a later one, or the work on it, fails.
    with ExitStack() as stack:
        work = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=_REMOVE_PREFIX, dir=parent))
        )
        image = work / f"{file_system}.image"
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        loop = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
        stack.callback(_run, "losetup", "--detach", loop)
        _require_direct_io(loop)
        _run(*make, *mkfs_options, loop)
        mount_point = work / "mount"
        mount_point.mkdir()
        _run("mount", loop, str(mount_point))
        stack.callback(_unmount, mount_point)
        directory = mount_point / "data"
        directory.mkdir()
        facts = _file_system_facts(directory) | {
            "loop_over": _file_system_facts(work)["file_system"],
            "loop_image_size_bytes": str(size_bytes),
        }
        yield Device(f"{file_system}-loop", directory, facts)


def _require_direct_io(loop: str) -> None:
    state = Path("/sys/block") / Path(loop).name / "loop" / "dio"
    if state.read_text(encoding="ascii").strip() != "1":
        raise DeviceError(f"{loop} has no direct I/O here: the file system below it can't do it")


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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DeviceError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
