"""Where a measurement was made: without it the figures say nothing."""

import os
import platform
from pathlib import Path

from kvring.mounts import mount_of

__all__ = ["file_system", "machine_facts"]


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


def _processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
