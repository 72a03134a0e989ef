"""The three plots that the page begins with: speed, CPU time, and how long loads wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches.compare import sections
from benches.compare.document import Document, samples_by_section
from benches.compare.drawing import Series, bars, by_size, legend, machine_text, save
from benches.compare.mixed import KVRING_ALONE, MIXED, P50, P99
from benches.compare.peers import FIO, FS, FS_NATIVE, FS_NATIVE_32, KVRING, KVRING_OFF, RAW_BLOCK
from benches.compare.samples import CPU, RATE
from benches.compare.transfers import GET, PUT

OVERVIEW = "overview"
QUESTIONS = {
    "overview-rate": "How fast are stores and loads?",
    "overview-cpu": "How much CPU time do they take?",
    "overview-waiting": "How long do loads wait behind stores?",
}

_PEERS = (KVRING, KVRING_OFF, FS_NATIVE, FS_NATIVE_32, RAW_BLOCK, FS, FIO)
_WAITING_PEERS = (KVRING_ALONE, KVRING, FS_NATIVE)


def write_overview(pyplot: Any, document: Document, directory: Path) -> list[Path]:
    """Draw those of the three for which there are samples."""
    files = []
    for name, (metric, unit) in {
        "overview-rate": (RATE, "MB/s"),
        "overview-cpu": (CPU, "CPU s/GB"),
    }.items():
        parts = _measured(document, (sections.DISK, sections.ZRAM))
        if parts:
            drawn = _transfers(pyplot, document, parts, metric, unit)
            files.append(_write(pyplot, drawn, directory, name, document, parts))
    parts = _measured(document, (sections.MIXED_DISK, sections.MIXED_ZRAM))
    if parts:
        drawn = _waiting(pyplot, document, parts)
        files.append(_write(pyplot, drawn, directory, "overview-waiting", document, parts))
    return files


def _measured(document: Document, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in document["sections"]]


def _write(
    pyplot: Any, drawn: Any, directory: Path, name: str, document: Document, parts: list[str]
) -> Path:
    machines = dict.fromkeys(machine_text(document["sections"][part]) for part in parts)
    path = directory / f"{name}.png"
    drawn.suptitle(QUESTIONS[name])
    save(pyplot, drawn, path, "\n".join(machines))
    return path


def _transfers(pyplot: Any, document: Document, parts: list[str], metric: str, unit: str) -> Any:
    measured = samples_by_section(document)
    drawn, rows = pyplot.subplots(len(parts), 2, figsize=(12, 4.5 * len(parts)), squeeze=False)
    for part, panels in zip(parts, rows, strict=True):
        for panel, operation in zip(panels, (PUT, GET), strict=True):
            by_size(panel, measured[part], operation, metric, _PEERS)
            panel.set_title(f"{operation}, {_where(document, part)}")
        panels[0].set_ylabel(unit)
    legend(panel for panels in rows for panel in panels)
    return drawn


def _waiting(pyplot: Any, document: Document, parts: list[str]) -> Any:
    measured = samples_by_section(document)
    drawn, panels = pyplot.subplots(1, len(parts), figsize=(12, 4.5), squeeze=False)
    for part, panel in zip(parts, panels[0], strict=True):
        samples = measured[part]
        cell = next(one for one in samples.cells(MIXED) if not one.case)
        peers = [peer for peer in _WAITING_PEERS if samples.series(cell, peer, P99)]
        bars(panel, samples, peers, [Series(cell, P50, "p50"), Series(cell, P99, "p99")])
        panel.set_title(_where(document, part))
    panels[0][0].set_ylabel("batch of 16 GETs of 1 MiB, ms")
    return drawn


def _where(document: Document, part: str) -> str:
    device = document["sections"][part]["device"]
    speed = ", at the speed of memory" if device["name"] == "xfs-zram" else ""
    return f"{device.get('file_system', device['name'])}{speed}"
