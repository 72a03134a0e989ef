"""Where a measurement was made: without it the figures say nothing."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "file_system", "machine_facts", "mount_of"]


@dataclass(frozen=True)
class Mount:
    """What is mounted where a path is."""

    mount_point: Path
    file_system: str
    source: str
    options: frozenset[str]


def machine_facts(paths: list[Path]) -> dict[str, str | int | float]:
    """Return what describes this machine and the file systems of `paths`, without naming either."""
    return {
        "kernel": platform.release(),
        "processor": _processor_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "file_system": ", ".join(dict.fromkeys(map(file_system, paths))),
        # Figures taken while something else ran are worth little: this shows it.
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, "none" for a device, or "unknown"."""
    if path.is_block_device():
        return "none"
    mount = mount_of(path)
    return mount.file_system if mount is not None else "unknown"


def mount_of(path: Path) -> Mount | None:
    """Return what is mounted where `path` is (proc_pid_mountinfo(5)); None if that is not told."""
    resolved = path.resolve()
    found: Mount | None = None
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, rest = line.partition(" - ")
        mount_point, options = _unescape(fields.split()[4]), fields.split()[5]
        file_system_type, source, more = (rest.split(" ", 2) + [""] * 3)[:3]
        depth = len(Path(mount_point).parts)
        # Of two mounts on one another the later counts.
        is_deeper = found is None or depth >= len(found.mount_point.parts)
        if is_deeper and resolved.is_relative_to(mount_point):
            all_options = frozenset([*options.split(","), *more.strip().split(",")])
            found = Mount(Path(mount_point), file_system_type, _unescape(source), all_options)
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
