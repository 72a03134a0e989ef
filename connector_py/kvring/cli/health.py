"""Whether a path of a store is healthy, why not, and what to type next: told in bounded time."""

import errno
import os
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvring import FormatError, KvRingError
from kvring._native import StoredChunks
from kvring.cli.disk import BoundedLook, read_head, wait_for_thaw
from kvring.cli.output import size_text
from kvring.cli.users import as_user, owner_of, user_name
from kvring.mounts import Mount, mount_at
from kvring.owner_address import INDEX_NAME, Place, look_at
from kvring.owner_requests import ask
from kvring.socket_peers import OtherUserError, StoppedError

__all__ = ["Health", "HealthLook"]

_DISK_DEADLINE_S: Final = 0.9
_OWNER_DEADLINE_S: Final = 0.6
# The least that a store grows by.
_LEAST_FREE_BYTES: Final = 64 << 20
# Of the capacity or the file system: a store that has taken so much is not kept from the rest.
_WHOLE_SHARE: Final = 0.9
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)
_NO_PATH: Final = frozenset((errno.ELOOP, errno.ENAMETOOLONG))
# Of another look, after one that took all the time there is.
_LEAST_LOOK_S: Final = 0.2
_READ_ONLY: Final = frozenset(("ro", "emergency_ro"))
# What StoredChunks says of a device without one.
_NO_STORE: Final = "it holds no store"
_RUNBOOK: Final = "docs/how-to/operations.md"
_UPGRADE: Final = "docs/how-to/upgrade.md"


@dataclass(frozen=True)
class Health:
    """How a path is: `state` in a word or two, `why`, and the `remedy`, empty if it is healthy.

    `owner` is what the owner says, empty if it says nothing.
    """

    path: str
    state: str
    why: str
    remedy: str = ""
    owner: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether it serves, and nothing is to be done."""
        return self.state == "healthy"


class _Disk(NamedTuple):
    """What the disk tells of a path; `error` is what fails there, `damage` what of the index.

    With `is_newer` that is no damage: a newer kvring wrote it.
    """

    place: Place | None = None
    error: OSError | None = None
    damage: str = ""
    is_newer: bool = False
    facts: dict[str, Any] | None = None
    free_bytes: int = 0
    total_bytes: int = 0
    has_inodes: bool = True


class HealthLook:
    """A look at a path, under way. It needs no disk, and never hangs."""

    def __init__(self, path: Path, index_path: Path | None) -> None:
        """Begin it: the disk is looked at in processes of their own."""
        self._path, self._index_path = path, index_path
        self._end_s = time.monotonic() + _DISK_DEADLINE_S
        self._look = BoundedLook(lambda: _disk_of(path, index_path))
        self._change = BoundedLook(lambda: wait_for_thaw(index_path or path))
        self._disk: _Disk | None = None
        self._mount = mount_at(Path(os.path.normpath(path.absolute())))

    def result(self) -> Health:
        """Ask the owner, wait for the disk, and judge."""
        answer: dict[str, Any] | None = None
        error: Exception | None = None
        try:
            request = {"ask": "stats"}
            answer = ask(
                self._path,
                self._index_path,
                request,
                look=lambda *_: self._place(),
                deadline_s=_OWNER_DEADLINE_S,
            )
        except (OSError, KvRingError) as found:
            error = found
        disk = self._disk_now()
        health = self._of_error(error, disk) or self._of_disk(disk, answer)
        if answer is None:
            return health or self._of_nobody(disk, error)
        return replace(health or self._of_owner(answer, disk), owner=_words(answer))

    def _disk_now(self) -> _Disk:
        if self._disk is None:
            try:
                self._disk = self._look.result(max(self._end_s - time.monotonic(), 0))
            except OSError as error:
                self._disk = _Disk(error=error)
            if self._disk.place is not None:
                # Links lead there.
                self._mount = mount_at(self._disk.place.resolved)
        return self._disk

    def _place(self) -> Place:
        disk = self._disk_now()
        if disk.place is None:
            raise disk.error or FileNotFoundError
        return disk.place

    def _health(self, state: str, why: str, remedy: str = "") -> Health:
        return Health(str(self._path), state, why, remedy)

    def _of_error(self, error: Exception | None, disk: _Disk) -> Health | None:
        """Judge by why the owner does not answer, as far as that is no fault of the disk."""
        if isinstance(error, OtherUserError):
            if os.geteuid() == 0:
                remedy = f"ls -ld {self._quoted()}; ps -fu {error.user_id}"
                return self._health("another user's", str(error), remedy)
            why = f"a process of user {user_name(error.user_id)} has it open"
            return self._health("another user's", why, as_user(error.user_id, self._command()))
        if isinstance(disk.error, PermissionError):
            why, user_id = owner_of(self._path)
            return self._health("another user's", why, as_user(user_id, self._command()))
        if isinstance(error, StoppedError):
            why = f"process {error.process_id}, which has it open, is stopped (SIGSTOP)"
            return self._health("stopped owner", why, f"kill -CONT {error.process_id}")
        return None

    def _of_disk(self, disk: _Disk, answer: dict[str, Any] | None) -> Health | None:
        served = "" if answer is None else f"; process {answer['process_id']} still answers"
        is_dead = self._mount is not None and "shutdown" in self._mount.options
        if isinstance(disk.error, TimeoutError):
            why = f"{self._device()} did not answer in {_DISK_DEADLINE_S:g} s{served}"
            return self._health("stuck disk", why, f"dmesg -T | tail; {_RUNBOOK}#stuck-disk")
        if isinstance(disk.error, _ABSENT):
            return None if answer is None else self._moved(answer)
        if disk.error is not None and disk.error.errno in _NO_PATH:
            why = f"the path leads nowhere: {disk.error.strerror}"
            return self._health("no store", why, f"namei {self._quoted()}")
        if disk.error is not None or is_dead:
            reason = (disk.error and disk.error.strerror) or "its file system has shut down"
            remedy = f"dmesg -T | tail; smartctl -a {self._device()}; {_RUNBOOK}#dead-disk"
            return self._health("dead disk", f"{self._device()}: {reason}{served}", remedy)
        if self._is_frozen():
            where = self._mounted()
            why = f"{where} takes no change: it is frozen, or its drive answers no write{served}"
            remedy = f"fsfreeze --unfreeze {where}; dmesg -T | tail; {_RUNBOOK}#stuck-disk"
            return self._health("frozen", why, remedy)
        if disk.is_newer:
            return self._health("newer format", f"{disk.damage}{served}", _UPGRADE)
        is_blank = disk.damage.endswith(_NO_STORE) and answer is None
        if disk.damage and not is_blank:
            # No command reads it: neither does kvring verify.
            remedy = f"start the server, which begins a new index; {_RUNBOOK}#damaged-index"
            return self._health("damaged index", f"{disk.damage}{served}", remedy)
        return None

    def _is_frozen(self) -> bool:
        try:
            self._change.result(max(self._end_s - time.monotonic(), _LEAST_LOOK_S))
        except TimeoutError:
            return True
        except OSError:
            # It cannot be told.
            return False
        return False

    def _moved(self, answer: dict[str, Any]) -> Health:
        process_id = answer["process_id"]
        known = {one["path"] for one in answer["stats"]["paths"]}
        places = _directories_of(process_id) - known
        why = f"nothing is there, and process {process_id} has what was there open"
        remedy = f"put it back, or restart process {process_id}; it stores nothing until then"
        if len(places) == 1:
            (place,) = places
            why += f", now at {place}"
            remedy = f"mv {shlex.quote(place)} {self._quoted()}"
        return self._health("renamed", why, remedy)

    def _of_owner(self, answer: dict[str, Any], disk: _Disk) -> Health:
        one = _own_path(answer)
        who = f"process {answer['process_id']}"
        if read_only := self._of_read_only(disk, f"{who} stores nothing"):
            return read_only
        is_short = disk.free_bytes < _LEAST_FREE_BYTES or not disk.has_inodes
        used = f"{size_text(one['used_bytes'])} of {size_text(one['capacity_bytes'])}"
        possible_bytes = min(one["capacity_bytes"], disk.total_bytes)
        if is_short and one["used_bytes"] < _WHOLE_SHARE * possible_bytes:
            what = size_text(disk.free_bytes) if disk.has_inodes else "no inode"
            why = f"{self._mounted()} has {what} free; {who} uses {used}"
            return self._health("full", why, f"df -h {self._mounted()}; {_RUNBOOK}#full-disk")
        if trouble := one["reason"] or one["trouble"]:
            section = "dead-disk" if one["reason"] else "failing-transfers"
            section = "stuck-disk" if one["stuck"] else section
            remedy = f"kvring doctor {self._quoted()}; {_RUNBOOK}#{section}"
            return self._health("failing", f"{who}: {trouble}", remedy)
        note = f"; {one['note']}" if one["note"] else ""
        return self._health("healthy", f"{who}, {_chunks(one)}, {used} used{note}")

    def _of_read_only(self, disk: _Disk, outcome: str) -> Health | None:
        if self._is_read_only_device(disk):
            remedy = f"dmesg -T | tail; blockdev --setrw {self._quoted()}"
            return self._health("read-only", f"the device is: {outcome}", remedy)
        if self._mount is not None and self._mount.options & _READ_ONLY:
            runbook = f"{_RUNBOOK}#dead-disk"
            remedy = f"dmesg -T | tail; mount -o remount,rw {self._mounted()}; {runbook}"
            if "emergency_ro" in self._mount.options:
                repair = f"umount, fsck {self._device()}, mount"
                remedy = f"dmesg -T | tail; stop the server, {repair}; {runbook}"
            why = f"{self._mounted()} is mounted read-only: {outcome}"
            return self._health("read-only", why, remedy)
        return None

    def _missing_paths(self, facts: dict[str, Any]) -> list[str]:
        """Return the other paths of the store that are not where its last owner had them."""
        paths = [Path(one["path"]) for one in facts["members"] if one["path"] is not None]
        # They have disks of their own.
        look = BoundedLook(lambda: [str(path) for path in paths if not path.exists()])
        try:
            return look.result(max(self._end_s - time.monotonic(), _LEAST_LOOK_S))
        except OSError:
            return []

    def _of_nobody(self, disk: _Disk, error: Exception | None) -> Health:
        if error is not None and not isinstance(disk.error, _ABSENT):
            remedy = f"{_RUNBOOK}#stale-lock"
            return self._health("silent owner", f"the owner does not answer: {error}", remedy)
        if disk.facts is None:
            remedy = f"start the server, or name its path; kvring doctor {self._quoted()}"
            what = "no index.kvring is" if self._is_there() else "nothing is"
            what = "no store is" if disk.damage else what
            return self._health("no store", f"{what} there", remedy)
        if holder := disk.facts["holder"]:
            why = f"{holder} has it open and does not listen here"
            remedy = f"ask in its network namespace; kvring info {self._quoted()}"
            return self._health("silent owner", why, remedy)
        if read_only := self._of_read_only(disk, "no server can open it"):
            return read_only
        if missing := self._missing_paths(disk.facts):
            why = f"{', '.join(missing)}, of the same store, cannot be found"
            remedy = "mount it before the server starts, which would begin anew there"
            return self._health("path missing", why, remedy)
        if disk.facts["is_closed_in_order"]:
            return self._health("not open", "its last owner has closed it", "start the server")
        why = "nobody has it open, and its last owner did not close it"
        return self._health("killed owner", why, "start the server: it finds the chunks again")

    def _is_there(self) -> bool:
        # The disk has answered.
        with suppress(OSError):
            return self._path.exists()
        return False

    def _is_read_only_device(self, disk: _Disk) -> bool:
        if disk.place is None or not disk.place.is_device:
            return False
        number = self._path.stat().st_rdev
        switch = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/ro")
        return switch.exists() and switch.read_text(encoding="ascii").strip() == "1"

    def _device(self) -> str:
        """Return the device below the path, as far as it has one."""
        mount: Mount | None = self._mount
        if mount is None or mount.file_system in ("devtmpfs", "tmpfs", "overlay"):
            return self._quoted()
        return shlex.quote(mount.source)

    def _mounted(self) -> str:
        return self._quoted() if self._mount is None else shlex.quote(str(self._mount.mount_point))

    def _command(self) -> str:
        return f"kvring status {self._quoted()}"

    def _quoted(self) -> str:
        return shlex.quote(str(self._path))


def _own_path(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what an owner says of the path for which it was asked."""
    paths: list[dict[str, Any]] = answer["stats"]["paths"]
    return next((one for one in paths if one["path"] == answer.get("path")), paths[0])


def _chunks(one: dict[str, Any]) -> str:
    return "1 chunk" if one["keys"] == 1 else f"{one['keys']:,} chunks"


def _words(answer: dict[str, Any]) -> str:
    one = _own_path(answer)
    trouble = one["reason"] or one["trouble"] or "it reports no failure"
    return f"process {answer['process_id']} has {_chunks(one)} there; {trouble}"


def _disk_of(path: Path, index_path: Path | None) -> _Disk:
    """Look at the disk."""
    place: Place | None = None
    try:
        place = look_at(path, index_path)
        read_head(path)
        found = os.statvfs(path)
    except OSError as error:
        return _Disk(place, error)
    facts, damage, is_newer = None, "", False
    try:
        facts = StoredChunks(path, index_path).facts()
    except (KvRingError, OSError) as error:
        damage, is_newer = str(error), isinstance(error, FormatError)
    if place.is_device:
        return _Disk(place, None, damage, is_newer, facts)
    return _Disk(
        place,
        None,
        damage,
        is_newer,
        facts,
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        not found.f_files or bool(found.f_favail),
    )


def _directories_of(process_id: int) -> set[str]:
    """Return where the indexes are that a process has open, as far as this user may know."""
    found: set[str] = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
            with suppress(OSError):
                target = descriptor.readlink()
                if target.name == INDEX_NAME:
                    found.add(str(target.parent))
    return found
