"""What all plots share: one colour a system, axes, and the machine below each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.compare.mixed import KVRING_ALONE
from benches.compare.peers import (
    BARE,
    BARE_OFF,
    BARE_POSIX,
    FILES,
    FILES_POSIX,
    FIO,
    FS,
    FS_NATIVE,
    FS_NATIVE_2,
    FS_NATIVE_8,
    FS_NATIVE_32,
    FS_NATIVE_CACHED,
    KVRING,
    KVRING_OFF,
    ONE_PATH,
    ONE_PATH_TWO_THREADS,
    POSIX,
    RAW_BLOCK,
    REGISTERED,
    TWO_PATHS,
    UNPRIORITISED,
    io_threads_name,
)
from benches.compare.samples import Cell, Samples, Spread, size_text

_DOTS_PER_INCH = 110
_SMALLEST_SIZE_BYTES = 64 << 10
# From there on a logarithmic axis shows more than it hides.
_LEAST_LOGARITHMIC_RANGE = 20

_OFF = {"checksum": "off"}
# Blues and greens are kvring, warm colours its peers, black the device.
COLOURS = {
    KVRING: "#1f4e9c",
    KVRING_OFF: "#4aa3df",
    REGISTERED: "#1b9e77",
    KVRING_ALONE: "#a6bddb",
    UNPRIORITISED: "#66c2a5",
    BARE: "#3f007d",
    BARE_OFF: "#9e9ac8",
    BARE_POSIX: "#cbc9e2",
    FILES: "#006d2c",
    FILES_POSIX: "#74c476",
    POSIX: "#35978f",
    ONE_PATH: "#2b5f75",
    ONE_PATH_TWO_THREADS: "#5ab4ac",
    TWO_PATHS: "#01665e",
    io_threads_name(1): "#084081",
    io_threads_name(2): "#2b8cbe",
    io_threads_name(4): "#7bccc4",
    io_threads_name(1, _OFF): "#00441b",
    io_threads_name(2, _OFF): "#238b45",
    io_threads_name(4, _OFF): "#99d8c9",
    FS_NATIVE: "#d95f02",
    FS_NATIVE_2: "#fec44f",
    FS_NATIVE_8: "#cc4c02",
    FS_NATIVE_32: "#8c2d04",
    FS_NATIVE_CACHED: "#fdbe85",
    RAW_BLOCK: "#c51b7d",
    FS: "#b8860b",
    FIO: "#000000",
}
_OTHER_COLOUR = "#888888"


def colour(peer: str) -> str:
    """Return the colour that a system has in every plot."""
    return COLOURS.get(peer, _OTHER_COLOUR)


@dataclass(frozen=True)
class Series:
    """One bar of each group."""

    cell: Cell
    metric: str
    label: str


def pyplot_without_display() -> Any:
    """Return matplotlib's pyplot. Raises ImportError."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def machine_text(entry: dict[str, Any]) -> str:
    """Name the machine on which a part was measured, and what it was measured on."""
    machine, device = entry["machine"], entry["device"]
    memory_gib = machine.get("memory_size_bytes", 0) / (1 << 30)
    facts = (
        machine.get("processor"),
        f"{machine.get('processor_count', '?')} processors",
        f"{memory_gib:.0f} GiB memory",
        f"kernel {machine.get('kernel', '?')}",
        ", ".join(filter(None, (device.get("file_system"), device.get("over")))),
    )
    return ", ".join(fact for fact in facts if fact)


def save(pyplot: Any, drawn: Any, path: Path, footer: str) -> None:
    """Write a figure, with the machine below it."""
    drawn.text(0.5, 0.008, footer, ha="center", va="bottom", fontsize=7, color="#444444")
    drawn.tight_layout(rect=(0, 0.03 + 0.02 * footer.count("\n"), 1, 1))
    drawn.savefig(path, dpi=_DOTS_PER_INCH)
    pyplot.close(drawn)


def by_size(
    panel: Any, samples: Samples, operation: str, metric: str, peers: Iterable[str]
) -> None:
    """Draw a line for each peer over the chunk sizes of 64 KiB and more."""
    sizes = sorted(
        {
            cell.chunk_size_bytes
            for cell in samples.cells(operation)
            if cell.chunk_size_bytes >= _SMALLEST_SIZE_BYTES
        }
    )
    medians: list[float] = []
    for peer in peers:
        spreads = {
            size: spread
            for size in sizes
            if (spread := samples.spread(Cell(operation, size), peer, metric)) is not None
        }
        if not spreads:
            continue
        medians += [spread.median for spread in spreads.values()]
        panel.errorbar(
            [sizes.index(size) for size in spreads],
            [spread.median for spread in spreads.values()],
            yerr=_reach(spreads.values()),
            label=peer,
            color=colour(peer),
            marker="o",
            markersize=4,
            capsize=3,
        )
    panel.set_xticks(range(len(sizes)), [size_text(size) for size in sizes])
    panel.set_xlabel("chunk size")
    scale_axis(panel, medians)


def legend(panels: Iterable[Any]) -> None:
    """Name every system once, on the last panel."""
    last: Any = None
    named: dict[str, Any] = {}
    for last in panels:
        handles, labels = last.get_legend_handles_labels()
        named.update(zip(labels, handles, strict=True))
    if named:
        last.legend(named.values(), named.keys(), fontsize="small")


def bars(panel: Any, samples: Samples, peers: list[str], series: list[Series]) -> None:
    """Draw a group of bars for each peer, in its colour; each series is a shade paler."""
    width = 0.8 / len(series)
    drawn: list[float] = []
    for number, one in enumerate(series):
        spreads = [samples.spread(one.cell, peer, one.metric) for peer in peers]
        known = [spread or Spread(0.0, 0.0, 0.0) for spread in spreads]
        drawn += [spread.median for spread in known if spread.median > 0]
        panel.bar(
            [index + number * width for index in range(len(peers))],
            [spread.median for spread in known],
            width,
            yerr=_reach(known),
            capsize=3,
            color=[colour(peer) for peer in peers],
            alpha=1.0 - 0.6 * (len(series) - 1 - number) / len(series),
            label=one.label,
        )
    middle = width * (len(series) - 1) / 2
    panel.set_xticks(
        [index + middle for index in range(len(peers))],
        [peer.replace(", ", ",\n") for peer in peers],
        fontsize="small",
    )
    scale_axis(panel, drawn)
    panel.legend(title="pale to full", fontsize="small")


def scale_axis(panel: Any, medians: list[float]) -> None:
    """Take a linear axis from zero, or a logarithmic one where the range is wide."""
    if medians and max(medians) >= _LEAST_LOGARITHMIC_RANGE * min(medians) > 0:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    panel.grid(visible=True, axis="y", which="both", alpha=0.3)


def _reach(spreads: Iterable[Spread]) -> list[list[float]]:
    ones = list(spreads)
    return [
        [one.median - one.minimum for one in ones],
        [one.maximum - one.median for one in ones],
    ]
