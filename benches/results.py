"""Results that are kept: tables as Markdown, with date, commit, machine and conditions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

_REPOSITORY = Path(__file__).resolve().parents[1]
_SYSFS = Path("/sys/dev/block")
_KINDS = {
    "nvme": "NVMe drive",
    "vd": "virtual disk (virtio)",
    "xvd": "virtual disk (Xen)",
    "sd": "SCSI or SATA disk",
    "loop": "loop device",
    "zram": "zram",
    "dm": "device mapper",
    "md": "RAID",
}
HELP = "also write the tables to this Markdown file, such as results/NAME.md"


@dataclass(frozen=True)
class Section:
    """A table, and what holds for it alone."""

    table: Table
    notes: Sequence[str] = ()


def write_results(
    path: Path, title: str, command: str, conditions: Iterable[str], sections: Iterable[Section]
) -> None:
    """Write a results file.

    Args:
        path: Is overwritten.
        title: Heading of the file.
        command: Repeats the run.
        conditions: What the figures depend on, besides date, commit and machine.
        sections: Tables of the run.
    """
    machine = machine_facts()
    kernel = machine["kernel"].partition("-")[0]
    lines = [
        f"# {title}",
        "",
        (
            f"- Written by `{command}` on {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, "
            f"commit {commit()}."
        ),
        (
            f"- Machine: {machine['processor_count']} x {machine['processor']}, "
            f"{machine['memory_size_bytes'] / 2**30:.0f} GiB of memory, Linux {kernel}, "
            f"Python {machine['python']}, load average at the end {machine['load_average_1min']}."
        ),
        *(f"- {condition}" for condition in conditions),
    ]
    for section in sections:
        lines += ["", f"## {section.table.title}", "", *_markdown(section.table)]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _markdown(table: Table) -> list[str]:
    header = [str(column.header) for column in table.columns]
    dashes = ["---:" if column.justify == "right" else "---" for column in table.columns]
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = [header, dashes, *zip(*columns, strict=True)]
    return ["| " + " | ".join(row) + " |" for row in rows]


def commit() -> str:
    """Return the commit of this tree, and whether files differ from it."""
    git = ("git", "-C", str(_REPOSITORY))
    try:
        head = subprocess.run(
            (*git, "rev-parse", "--short=12", "HEAD"), capture_output=True, text=True, check=True
        ).stdout.strip()
        # Pages do not change figures.
        changes = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md")
        changed = subprocess.run((*git, *changes), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with local changes" if changed.stdout else head


def machine_facts() -> dict[str, Any]:
    """Return what describes this machine, without naming it."""
    return {
        "processor": _processor_model(),
        "processor_count": os.cpu_count() or 0,
        "memory_size_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        # Figures taken while something else ran are worth little: this shows it.
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def drive_of(path: Path) -> str:
    """Return the kind and model of the drive below a path, as sysfs has them."""
    number = path.stat().st_dev
    device = _SYSFS / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():
        return "unknown"
    device = device.resolve()
    drive = device.parent if (device / "partition").exists() else device
    kind = next((kind for name, kind in _KINDS.items() if drive.name.startswith(name)), "disk")
    model = drive / "device" / "model"
    return f"{kind} {model.read_text(encoding='utf-8').strip()}" if model.exists() else kind


def _processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
