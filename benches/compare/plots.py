"""PNG plots, by matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benches.compare import sections
from benches.compare.lookups import EXISTS
from benches.compare.mixed import MIXED, P50, P99
from benches.compare.samples import CPU, KEY_RATE, RATE, Cell, Samples, size_text
from benches.compare.transfers import GET, PUT

_DOTS_PER_INCH = 110
_TRANSFERS = (sections.DISK, sections.ZRAM, sections.BARE, sections.LAYOUTS, sections.PATHS)
_MIXED = (sections.MIXED_DISK, sections.MIXED_ZRAM)


def write_plots(measured: dict[str, Samples], directory: Path) -> dict[str, list[Path]]:
    """Draw all that there are samples for.

    Args:
        measured: Samples by part.
        directory: Is made if it is missing.

    Returns:
        The files by part.
    """
    matplotlib = importlib.import_module("matplotlib")
    # No display is needed.
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[Path]] = {}
    for name, samples in measured.items():
        figures: dict[str, Any] = {}
        if name in _TRANSFERS:
            for kind, metric, unit in (("rate", RATE, "MB/s"), ("cpu", CPU, "CPU s/GB")):
                if any(samples.has(cell, metric) for cell in samples.cells()):
                    figures[kind] = _by_size(pyplot, samples, metric, unit)
        elif name in _MIXED:
            figures["latency"] = _latencies(pyplot, samples)
        elif name == sections.EXISTS:
            figures["rate"] = _lookups(pyplot, samples)
        for kind, drawn in figures.items():
            path = directory / f"{name}-{kind}.png"
            drawn.suptitle(sections.TITLES[name])
            drawn.tight_layout()
            drawn.savefig(path, dpi=_DOTS_PER_INCH)
            pyplot.close(drawn)
            files.setdefault(name, []).append(path)
    return files


def _by_size(pyplot: Any, samples: Samples, metric: str, unit: str) -> Any:
    drawn, panels = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    for panel, operation in zip(panels, (PUT, GET), strict=True):
        sizes = sorted({cell.chunk_size_bytes for cell in samples.cells(operation)})
        for peer in samples.peers():
            points = [
                (size, spread)
                for size in sizes
                if (spread := samples.spread(Cell(operation, size), peer, metric)) is not None
            ]
            medians = [spread.median for _, spread in points]
            below = [spread.median - spread.minimum for _, spread in points]
            above = [spread.maximum - spread.median for _, spread in points]
            panel.errorbar(
                [sizes.index(size) for size, _ in points],
                medians,
                yerr=[below, above],
                label=peer,
                marker="o",
                markersize=4,
                capsize=3,
            )
        panel.set_xticks(range(len(sizes)), [size_text(size) for size in sizes])
        panel.set_yscale("log")
        panel.set_title(operation)
        panel.set_xlabel("chunk size")
        panel.grid(visible=True, which="both", alpha=0.3)
    panels[0].set_ylabel(unit)
    panels[1].legend(fontsize="small")
    return drawn


def _latencies(pyplot: Any, samples: Samples) -> Any:
    drawn, panel = pyplot.subplots(figsize=(9, 4))
    cell = next(one for one in samples.cells(MIXED) if not one.case)
    _bars(panel, samples, [(cell, P50, "p50"), (cell, P99, "p99")])
    panel.set_ylabel("batch of GETs, ms")
    return drawn


def _lookups(pyplot: Any, samples: Samples) -> Any:
    drawn, panel = pyplot.subplots(figsize=(9, 4))
    _bars(panel, samples, [(cell, KEY_RATE, cell.case) for cell in samples.cells(EXISTS)])
    panel.set_ylabel("keys/s")
    panel.set_yscale("log")
    return drawn


def _bars(panel: Any, samples: Samples, series: list[tuple[Cell, str, str]]) -> None:
    """Draw a group of bars for each peer, a bar for each series."""
    peers = samples.peers()
    width = 0.8 / len(series)
    for number, (cell, metric, label) in enumerate(series):
        spreads = [samples.spread(cell, peer, metric) for peer in peers]
        at = [index + number * width for index in range(len(peers))]
        heights = [spread.median if spread else 0.0 for spread in spreads]
        below = [spread.median - spread.minimum if spread else 0.0 for spread in spreads]
        above = [spread.maximum - spread.median if spread else 0.0 for spread in spreads]
        panel.bar(at, heights, width, yerr=[below, above], capsize=3, label=label)
    middle = width * (len(series) - 1) / 2
    panel.set_xticks([index + middle for index in range(len(peers))], peers, fontsize="small")
    panel.grid(visible=True, axis="y", alpha=0.3)
    panel.legend()
