"""Where a measurement was made: without it the figures say nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine_facts() -> dict[str, str | int | float]:
    """Return what describes this machine, without naming it."""
    return {
        "processor": _processor_model(),
        "processor_count": os.cpu_count() or 0,
        "memory_size_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "transparent_huge_pages": _transparent_huge_pages(),
        # Figures taken while something else ran are worth little: this shows it.
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def _processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _transparent_huge_pages() -> str:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists():
        return "absent"
    return setting.read_text(encoding="ascii").partition("[")[2].partition("]")[0]
