"""PNG plots, by matplotlib: a few for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches.compare import overview, sections
from benches.compare.document import Document, samples_by_section
from benches.compare.drawing import (
    Series,
    bars,
    by_size,
    legend,
    machine_text,
    pyplot_without_display,
    save,
)
from benches.compare.lookups import EXISTS
from benches.compare.mixed import MIXED, P50, P99
from benches.compare.samples import CPU, KEY_RATE, RATE, Samples
from benches.compare.transfers import GET, PUT

_TRANSFERS = (
    sections.DISK,
    sections.ZRAM,
    sections.THREADS_DISK,
    sections.THREADS_ZRAM,
    sections.BARE,
    sections.LAYOUTS,
    sections.PATHS,
)
_MIXED = (sections.MIXED_DISK, sections.MIXED_ZRAM)


def write_plots(document: Document, directory: Path) -> dict[str, list[Path]]:
    """Draw all that there are samples for.

    Args:
        document: All that was measured.
        directory: Is made if it is missing.

    Returns:
        The files by part; those of the overview have a name of their own.
    """
    pyplot = pyplot_without_display()
    directory.mkdir(parents=True, exist_ok=True)
    measured = samples_by_section(document)
    files: dict[str, list[Path]] = {}
    for name, samples in measured.items():
        for kind, drawn in _drawn(pyplot, name, samples).items():
            path = directory / f"{name}-{kind}.png"
            drawn.suptitle(sections.TITLES[name])
            save(pyplot, drawn, path, machine_text(document["sections"][name]))
            files.setdefault(name, []).append(path)
    if drawn_files := overview.write_overview(pyplot, document, directory):
        files[overview.OVERVIEW] = drawn_files
    return files


def _drawn(pyplot: Any, name: str, samples: Samples) -> dict[str, Any]:
    if name in _TRANSFERS:
        return {
            kind: _transfers(pyplot, samples, metric, unit)
            for kind, metric, unit in (("rate", RATE, "MB/s"), ("cpu", CPU, "CPU s/GB"))
            if any(samples.has(cell, metric) for cell in samples.cells(PUT))
        }
    if name in _MIXED:
        return {"latency": _latencies(pyplot, samples)}
    if name == sections.EXISTS:
        return {"rate": _lookups(pyplot, samples)}
    return {}


def _transfers(pyplot: Any, samples: Samples, metric: str, unit: str) -> Any:
    drawn, panels = pyplot.subplots(1, 2, figsize=(12, 5))
    for panel, operation in zip(panels, (PUT, GET), strict=True):
        by_size(panel, samples, operation, metric, samples.peers())
        panel.set_title(operation)
    panels[0].set_ylabel(unit)
    legend(panels)
    return drawn


def _latencies(pyplot: Any, samples: Samples) -> Any:
    drawn, panel = pyplot.subplots(figsize=(9, 4))
    cell = next(one for one in samples.cells(MIXED) if not one.case)
    bars(panel, samples, samples.peers(), [Series(cell, P50, "p50"), Series(cell, P99, "p99")])
    panel.set_ylabel("batch of GETs, ms")
    return drawn


def _lookups(pyplot: Any, samples: Samples) -> Any:
    drawn, panel = pyplot.subplots(figsize=(9, 4))
    series = [Series(cell, KEY_RATE, cell.case) for cell in samples.cells(EXISTS)]
    bars(panel, samples, samples.peers(), series)
    panel.set_ylabel("keys/s")
    return drawn
