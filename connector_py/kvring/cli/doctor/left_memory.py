"""Memory that a killed vLLM left: the files of its primary tier, which it had no time to remove."""

import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvring.cli.doctor.findings import Finding, Level
from kvring.cli.output import count_text, size_text

__all__ = ["look_at_left_memory"]

_CHECK = "memory of vLLM"
_DIRECTORY = Path("/dev/shm")
_PREFIX = "vllm_offload_"
# As its SharedOffloadRegion names them; further files of an engine have a number at the end.
_NAME = re.compile(rf"({_PREFIX}.+\.mmap)(?:\.\d+)?")
# Its workers wait 30 s for each other before each of them has mapped all files.
_LEAST_AGE_S = 60


class _File(NamedTuple):
    path: Path
    identity: tuple[int, int]
    taken_bytes: int
    user_id: int
    changed_s: float


def look_at_left_memory(*, is_cleaning: bool = False) -> Iterator[Finding]:
    """Look for files that no process has, and remove them if that is asked for.

    Who has one mapped keeps it: what could be lost by a mistake is a start of vLLM.
    """
    # They are listed first: a worker opens a file only while another one has it open.
    engines = _files_by_engine()
    in_use, is_all = _files_in_use()
    left: list[_File] = []
    young: list[_File] = []
    unknown: list[_File] = []
    for files in engines.values():
        if any(one.identity in in_use for one in files):
            continue
        if any(time.time() - one.changed_s < _LEAST_AGE_S for one in files):
            young += files
        elif is_all or all(one.user_id == os.geteuid() for one in files):
            left += files
        else:
            unknown += files
    if left and not is_cleaning:
        whose = "no process" if is_all else "no process that can be read"
        what = f"{_text(left)} of a killed vLLM: {whose} has them open or mapped"
        yield Finding(Level.WARNING, _CHECK, what, "kvring doctor --clean-shm")
    if unknown:
        what = f"{_text(unknown)} of other users: not every process can be read"
        yield Finding(Level.NOTE, _CHECK, what, "run as root to see whether one has them mapped")
    if is_cleaning and young:
        what = f"{_text(young)} are younger than {_LEAST_AGE_S} s: vLLM may be starting"
        yield Finding(Level.NOTE, _CHECK, what, "run it again in a minute")
    if is_cleaning:
        yield from _remove(left, "" if is_all else "; not every process can be read")


def _files_by_engine() -> dict[str, list[_File]]:
    found: defaultdict[str, list[_File]] = defaultdict(list)
    for path in _DIRECTORY.iterdir() if _DIRECTORY.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    identity, taken_bytes = (status.st_dev, status.st_ino), status.st_blocks * 512
                    one = _File(path, identity, taken_bytes, status.st_uid, status.st_ctime)
                    found[match[1]].append(one)
    return found


def _files_in_use() -> tuple[set[tuple[int, int]], bool]:
    """Return what processes have open or mapped, and whether every process could be read."""
    found: set[tuple[int, int]] = set()
    is_all = os.geteuid() == 0
    for process in Path("/proc").glob("[0-9]*"):
        of_process = _files_of(process)
        found |= of_process or set()
        is_all &= of_process is not None
    return found, is_all


def _files_of(process: Path) -> set[tuple[int, int]] | None:
    """Return what one process has; None if it may not be read."""
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):
                # Only files of this name are asked for: one on a dead server would not answer.
                if _PREFIX in descriptor.readlink().name:
                    status = descriptor.stat()
                    found.add((status.st_dev, status.st_ino))
        for line in (process / "maps").read_text(errors="replace").splitlines():
            if _PREFIX in line:
                device, inode = line.split()[3:5]
                major, minor = (int(number, 16) for number in device.split(":"))
                found.add((os.makedev(major, minor), int(inode)))
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        # It has ended.
        return set()
    return found


def _remove(left: list[_File], reservation: str) -> Iterator[Finding]:
    removed = []
    try:
        for one in left:
            one.path.unlink(missing_ok=True)
            removed.append(one)
    except OSError as error:
        yield Finding(Level.ERROR, _CHECK, f"cannot remove {error.filename}: {error.strerror}")
    yield Finding(Level.OK, _CHECK, f"removed {_text(removed)}{reservation}")


def _text(files: list[_File]) -> str:
    count = count_text(len(files), "file")
    return f"{count} in {_DIRECTORY} with {size_text(sum(one.taken_bytes for one in files))}"
