"""What came out: a table to read and a file to keep."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benches.compare.peers import FS_NATIVE, KVRING
from benches.compare.rounds import Sample
from benches.compare.workload import Measurement

_LEAST_TABLE_WIDTH = 112


@dataclass(frozen=True)
class Spread:
    """The middle of a few values, and how far they reach."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Sum up values, of which there is at least one."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, decimals: int) -> str:
        """Return the median with the range below it."""
        low, high = f"{self.minimum:.{decimals}f}", f"{self.maximum:.{decimals}f}"
        return f"{self.median:.{decimals}f}\n({low}-{high})"


@dataclass(frozen=True)
class Row:
    """One operation at one chunk size: each peer, and kvring as a multiple of the other."""

    chunk_size_bytes: int
    operation: str
    rate_mb_per_s: dict[str, Spread]
    cpu_s_per_gb: dict[str, Spread]
    rate_ratio: Spread | None
    cpu_ratio: Spread | None


def summarize(samples: list[Sample]) -> list[Row]:
    """Bring the samples of each chunk size and operation together."""
    cells = dict.fromkeys((sample.chunk_size_bytes, sample.operation) for sample in samples)
    return [_row(samples, *cell) for cell in cells]


def print_table(title: str, rows: list[Row], peers: list[str]) -> None:
    """Print the rows on standard output."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = (
        "Median of the rounds (smallest-largest). MB = 1e6 bytes, GB = 1e9 bytes, "
        "CPU = user and system time of the process. Ratios: kvring / fs_native, round by round."
    )
    table.add_column("chunk")
    table.add_column("")
    for peer in peers:
        table.add_column(f"{peer}\nMB/s", justify="right")
    table.add_column("ratio\n", justify="right")
    for peer in peers:
        table.add_column(f"{peer}\nCPU s/GB", justify="right")
    table.add_column("ratio\n", justify="right")
    for row in rows:
        table.add_row(
            f"{row.chunk_size_bytes // 1024} KiB",
            row.operation,
            *(row.rate_mb_per_s[peer].text(0) for peer in peers),
            row.rate_ratio.text(2) if row.rate_ratio else "",
            *(row.cpu_s_per_gb[peer].text(3) for peer in peers),
            row.cpu_ratio.text(2) if row.cpu_ratio else "",
        )
    # In a pipe rich takes 80 columns and would cut figures off.
    console = Console()
    console.width = max(console.width, _LEAST_TABLE_WIDTH)
    console.print(table)


def write_json(
    path: Path, context: Mapping[str, object], rows: list[Row], samples: list[Sample]
) -> None:
    """Write the context, the summary and every single sample."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        **context,
        "summary": [asdict(row) for row in rows],
        "samples": [asdict(sample) for sample in samples],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _row(samples: list[Sample], chunk_size_bytes: int, operation: str) -> Row:
    by_peer: dict[str, list[Measurement]] = {}
    for sample in samples:
        if (sample.chunk_size_bytes, sample.operation) == (chunk_size_bytes, operation):
            by_peer.setdefault(sample.peer, []).append(sample.measurement)

    def spreads(value: Callable[[Measurement], float]) -> dict[str, Spread]:
        return {peer: Spread.of([value(one) for one in ones]) for peer, ones in by_peer.items()}

    def ratio(value: Callable[[Measurement], float]) -> Spread | None:
        if not {KVRING, FS_NATIVE} <= by_peer.keys():
            return None
        # The two halves of a round ran under the same conditions: a steadier ratio than that of
        # two medians.
        pairs = zip(by_peer[KVRING], by_peer[FS_NATIVE], strict=True)
        return Spread.of([value(ours) / value(theirs) for ours, theirs in pairs])

    return Row(
        chunk_size_bytes,
        operation,
        spreads(lambda one: one.rate_mb_per_s),
        spreads(lambda one: one.cpu_s_per_gb),
        ratio(lambda one: one.rate_mb_per_s),
        ratio(lambda one: one.cpu_s_per_gb),
    )
