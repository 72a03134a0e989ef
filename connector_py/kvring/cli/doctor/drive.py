"""The drives below a path, as sysfs and smartctl describe them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvring.cli.disk import BoundedLook
from kvring.cli.doctor.findings import Finding, Level
from kvring.mounts import mount_at

__all__ = ["device_below", "drives_below", "drives_of_mount", "is_partition", "look_at_drive"]

_SMARTCTL_DEADLINE_S = 10.0
_MOST_USED_PERCENT = 80
_SHALLOW_QUEUE = 32
_VIRTUAL = ("vd", "xvd")
_SYSFS = Path("/sys")
_DEVICES = _SYSFS / "dev" / "block"
# A namespace of a subsystem that several controllers lead to.
_NVME_HEAD = re.compile(r"nvme(\d+)n(\d+)")


def drives_below(path: Path) -> list[Path]:
    """Return the drives that a path lies on, as directories of sysfs; none if that is not told."""
    device = device_below(path)
    return _leaves(device) if device is not None else []


def drives_of_mount(path: Path) -> list[Path]:
    """Return the same by what is mounted there: the disk is not asked."""
    mount = mount_at(Path(os.path.normpath(path.absolute())))
    if mount is None:
        return []
    if mount.file_system == "devtmpfs":
        return drives_below(path)
    device = _device(mount.device)
    return _leaves(device) if device is not None else []


def device_below(path: Path) -> Path | None:
    """Return the block device that a path is or lies on, of a partition its drive, likewise."""
    status = path.stat()
    number = status.st_rdev if path.is_block_device() else status.st_dev
    return _device(f"{os.major(number)}:{os.minor(number)}")


def is_partition(path: Path) -> bool:
    """Tell whether a path is a partition of a drive."""
    if not path.is_block_device():
        return False
    number = path.stat().st_rdev
    return (_DEVICES / f"{os.major(number)}:{os.minor(number)}" / "partition").exists()


def _device(number: str) -> Path | None:
    device = _DEVICES / number
    return _whole(device.resolve()) if device.exists() else None


def _whole(device: Path) -> Path:
    return device.parent if (device / "partition").exists() else device


def _leaves(device: Path) -> list[Path]:
    """Follow partitions to their drives, and RAID and device mapper to what they are made of."""
    device = _whole(device)
    parts = sorted((device / "slaves").glob("*"))
    leaves = [leaf for part in parts for leaf in _leaves(part.resolve())]
    return list(dict.fromkeys(leaves)) if parts else [device]


def look_at_drive(drive: Path, *, is_bare: bool = False, sysfs: Path = _SYSFS) -> Iterator[Finding]:
    """Look at how a drive is set up, and how it is.

    Args:
        drive: Its directory of sysfs.
        is_bare: Whether the store lies on it without a file system.
        sysfs: Where sysfs is mounted.
    """
    check = f"drive {drive.name}"
    model = _text(drive / "device" / "model") or _text(drive / "loop" / "backing_file")
    queue = drive / "queue"
    queues = [_queue_of(way) for way in _ways(drive, sysfs) or [drive]]
    facts = [model, *dict.fromkeys(map(_queue_text, queues))]
    if len(queues) > 1 or queues[0].name != drive.name:
        ways = ", ".join(one.name for one in queues)
        facts.append(f"{len(queues)} {'way' if len(queues) == 1 else 'ways'} to it: {ways}")
    yield Finding(Level.OK, check, ", ".join(fact for fact in facts if fact))
    if is_bare and _text(queue / "zoned") == "host-managed":
        what = "has host-managed zones, which are written in order only: an open refuses it"
        remedy = "name another drive, or a directory on a file system that has such zones"
        yield Finding(Level.ERROR, check, what, remedy)
    if _number(queue / "rotational") == 1:
        is_virtual = drive.name.startswith(_VIRTUAL)
        what = "says that it is a hard disk" + (", as virtual disks often do" if is_virtual else "")
        remedy = "a local NVMe drive: computing a prefix again may be faster than a hard disk"
        yield Finding(Level.NOTE if is_virtual else Level.WARNING, check, what, remedy)
    for one in queues:
        yield from _look_at_queue(one, check)
    if _number(queue / "discard_max_bytes") == 0:
        yield Finding(Level.NOTE, check, "takes no discards: `discard` has no effect")
    yield from _look_at_health(drive, check)


class _Queue(NamedTuple):
    """What orders and bounds the requests of a drive, or of one way to it."""

    name: str
    # Empty where there is none.
    scheduler: str
    # None where it is not told.
    depth: int | None


def _ways(drive: Path, sysfs: Path) -> list[Path]:
    """Return the ways to a drive if its name stands for several: it has no queue of its own then.

    The kernel hides these devices: they are in sysfs alone.
    """
    head = _NVME_HEAD.fullmatch(drive.name)
    return sorted((sysfs / "block").glob(f"nvme{head[1]}c*n{head[2]}")) if head else []


def _queue_of(device: Path) -> _Queue:
    queue = device / "queue"
    depth = _number(queue / "nr_requests")
    return _Queue(device.name, _chosen(_text(queue / "scheduler")), depth if depth >= 0 else None)


def _queue_text(queue: _Queue) -> str:
    facts = [f"scheduler {queue.scheduler}"] if queue.scheduler else []
    return ", ".join([*facts, *([] if queue.depth is None else [f"queue of {queue.depth}"])])


def _look_at_queue(queue: _Queue, check: str) -> Iterator[Finding]:
    directory = f"/sys/block/{queue.name}/queue"
    if queue.name.startswith("nvme") and queue.scheduler not in ("", "none"):
        what = f"scheduler {queue.scheduler}: kvring orders its transfers by itself"
        yield Finding(Level.NOTE, check, what, f"echo none > {directory}/scheduler")
    if queue.depth is not None and 0 < queue.depth < _SHALLOW_QUEUE:
        what = f"a queue of {queue.depth} requests bounds small chunks"
        yield Finding(Level.NOTE, check, what, f"echo 256 > {directory}/nr_requests")


def _look_at_health(drive: Path, check: str) -> Iterator[Finding]:
    report = _smart_report(drive)
    if report is None:
        return
    if report.get("error"):
        remedy = "install smartmontools, and run this as root"
        yield Finding(Level.NOTE, check, f"its health is not known: {report['error']}", remedy)
        return
    health = report.get("nvme_smart_health_information_log", {})
    used_percent = health.get("percentage_used")
    errors = health.get("media_errors", 0)
    if report.get("smart_status", {}).get("passed") is False or health.get("critical_warning"):
        remedy = "replace it; the store may be copied before (docs/how-to/operations.md)"
        yield Finding(Level.ERROR, check, "says that it is failing", remedy)
    elif errors:
        remedy = "watch it: smartctl -a; what it loses is a miss"
        yield Finding(Level.WARNING, check, f"has had {errors} media errors", remedy)
    elif used_percent is not None and used_percent >= _MOST_USED_PERCENT:
        what = f"{used_percent} % of its endurance is used"
        remedy = "`write_budget`, or admit = 'second_use'; plan to replace it"
        yield Finding(Level.WARNING, check, what, remedy)
    elif used_percent is not None:
        yield Finding(Level.OK, check, f"{used_percent} % of its endurance is used")


def _smart_report(drive: Path) -> dict[str, Any] | None:
    """Return what smartctl says; None for what is no drive of its own."""
    if not (drive / "device").exists() or drive.name.startswith(_VIRTUAL):
        return None
    command = shutil.which("smartctl", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if command is None:
        return {"error": "there is no smartctl"}
    try:
        arguments = [command, "--json", "--all", f"/dev/{drive.name}"]
        report: dict[str, Any] = json.loads(
            BoundedLook(lambda: _output(arguments)).result(_SMARTCTL_DEADLINE_S)
        )
    except TimeoutError:
        return {"error": f"smartctl has no answer of it in {_SMARTCTL_DEADLINE_S:g} s"}
    except (OSError, ValueError) as error:
        return {"error": str(error)}
    messages = [one.get("string", "") for one in report.get("smartctl", {}).get("messages", [])]
    has_health = "smart_status" in report or "nvme_smart_health_information_log" in report
    return report if has_health else {"error": "; ".join(messages) or "smartctl says nothing of it"}


def _output(arguments: list[str]) -> bytes:
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.stdout


def _chosen(schedulers: str) -> str:
    _, _, rest = schedulers.partition("[")
    return rest.partition("]")[0]


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else -1


def _text(path: Path) -> str:
    try:
        return " ".join(path.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return ""
