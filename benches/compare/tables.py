"""The tables: as rows of text, printed by rich, and written as Markdown by `markdown`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from benches.compare import bursts, checksum, engines, growth, sections
from benches.compare.deletes import COMPLETION_TIME, LOAD_P99
from benches.compare.failing import ALL_RATE, PHASE_TIME, SURVIVING_RATE
from benches.compare.goals import Goal
from benches.compare.memory import MEMORY_READ, ONE_CORE
from benches.compare.mixed import GET_RATE, P50, P99
from benches.compare.opening import KEY_MEMORY, OPEN_TIME
from benches.compare.samples import CPU, KEY_RATE, RATE, Cell, Samples, Spread, ratio_of, size_text

_METRICS = {
    RATE: "MB/s",
    CPU: "CPU s/GB",
    KEY_RATE: "keys/s",
    GET_RATE: "GETs, MB/s",
    P50: "GET batch p50, ms",
    P99: "GET batch p99, ms",
    growth.P50: "p50 of the loads, ms",
    growth.P999: "p99.9 of the loads, ms",
    growth.FILES: "data files made",
    OPEN_TIME: "time to open, s",
    KEY_MEMORY: "memory for a key, bytes",
    bursts.P50: "burst p50, ms",
    bursts.P90: "burst p90, ms",
    COMPLETION_TIME: "time to the answer, s",
    LOAD_P99: "p99 of the loads, ms",
    SURVIVING_RATE: "keys of the surviving path, MB/s",
    ALL_RATE: "all keys, MB/s",
    PHASE_TIME: "time, s",
    engines.SPACE: "space on disk, GB",
}
_IN_MIXED = {RATE: "SETs, MB/s"}
_LEAST_WIDTH = 150
# In these a row is a peer and a column a metric; in the others a row is a size and a column a peer.
_BY_PEER = (
    sections.MIXED_DISK,
    sections.MIXED_ZRAM,
    sections.GROWTH,
    sections.OPENING,
    sections.DELETES,
    sections.FAILING,
)


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: str
    header: list[str]
    rows: list[list[str]]


def goals_table(goals: list[Goal]) -> Table:
    """Return the goals, each with its verdict."""
    rows = [
        [goal.what, goal.compared_with, goal.target_text, goal.measured_text, goal.verdict]
        for goal in goals
    ]
    return Table("Goals", ["what", "compared with", "goal", "measured", ""], rows)


def section_tables(name: str, samples: Samples) -> Iterator[Table]:
    """Return the tables of one part, one for each metric."""
    if name in _BY_PEER:
        yield _table_by_peer(name, samples)
        return
    for metric, unit in _METRICS.items():
        cells = [
            cell
            for cell in samples.cells()
            if samples.has(cell, metric) and cell.operation != MEMORY_READ
        ]
        if name == sections.BENCH_L2 and metric == KEY_RATE:
            # Of stores and loads the keys a second are the megabytes in another unit.
            cells = [cell for cell in cells if not samples.has(cell, RATE)]
        if cells:
            yield _table_by_cell(f"{sections.TITLES[name]}: {unit}", samples, cells, metric)
    if name in (sections.BURSTS, sections.BURSTS_BUSY):
        yield _bursts_table(name, samples)
    for pair in checksum.PAIRS:
        if (table := _checksum_table(name, samples, pair)).rows:
            yield table
    if name == sections.ZRAM and (table := _allowed_table(name, samples)).rows:
        yield table


def print_table(table: Table) -> None:
    """Print a table on standard output."""
    rich_table = RichTable(title=table.title, title_justify="left")
    for index, column in enumerate(table.header):
        rich_table.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        rich_table.add_row(*row)
    # In a pipe rich takes 80 columns and would cut figures off.
    console = Console()
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(rich_table)


def _cell_text(cell: Cell) -> str:
    size = size_text(cell.chunk_size_bytes) if cell.chunk_size_bytes else ""
    return " ".join(filter(None, [cell.operation, size, cell.case]))


def _table_by_cell(title: str, samples: Samples, cells: list[Cell], metric: str) -> Table:
    peers = [
        peer
        for peer in samples.peers()
        if any(samples.series(cell, peer, metric) for cell in cells)
    ]
    by_operation = sorted(cells, key=lambda cell: _order(samples, cell))
    rows = [
        [_cell_text(cell), *(_spread_text(samples, cell, peer, metric) for peer in peers)]
        for cell in by_operation
    ]
    return Table(title, ["", *peers], rows)


def _bursts_table(name: str, samples: Samples) -> Table:
    """Return the times divided by those of the fs_native that was better in the round."""
    peers = [peer for peer in samples.peers() if not peer.startswith(bursts.REFERENCE_PREFIX)]
    rows = [
        [
            f"{size_text(cell.chunk_size_bytes)}, {label}",
            *(
                spread.text(2) if (spread := bursts.ratios(samples, cell, peer, metric)) else ""
                for peer in peers
            ),
        ]
        for cell in samples.cells()
        for label, metric in (("p50", bursts.P50), ("p90", bursts.P90))
    ]
    return Table(
        f"{sections.TITLES[name]}: time / time of the better fs_native", ["", *peers], rows
    )


def _checksum_table(name: str, samples: Samples, pair: tuple[str, str]) -> Table:
    """Return the checksum's share by itself, beside what it cannot go below."""
    rows = []
    for cell in samples.cells():
        if costs := checksum.costs(samples, cell, pair):
            memory = Cell(MEMORY_READ, cell.chunk_size_bytes)
            rows.append(
                [
                    _cell_text(cell),
                    *(_spread_text(samples, cell, peer, CPU) for peer in pair),
                    Spread.of(costs.values()).text(),
                    _spread_text(samples, memory, ONE_CORE, CPU),
                    _spread_text(samples, memory, ONE_CORE, RATE),
                ]
            )
    header = ["", *pair, "the checksum", "one core reads memory", "the same, MB/s"]
    return Table(f"{sections.TITLES[name]}: the checksum's share, CPU s/GB", header, rows)


def _allowed_table(name: str, samples: Samples) -> Table:
    """Return what the best peer's rate and the checksum's cost allow together."""
    ours, _ = checksum.PAIRS[0]
    rows = []
    for cell in samples.cells():
        peer = checksum.best_peer(samples, cell)
        allowed = checksum.allowed_rates(samples, cell)
        if peer is None or not allowed:
            continue
        ratio = ratio_of(samples.series(cell, ours, RATE), allowed)
        rows.append(
            [
                _cell_text(cell),
                f"{peer}: {_spread_text(samples, cell, peer, RATE)}",
                Spread.of(allowed.values()).text(),
                _spread_text(samples, cell, ours, RATE),
                ratio.text() if ratio else "",
            ]
        )
    header = ["", "best peer", "allowed together", ours, "of it"]
    return Table(f"{sections.TITLES[name]}: what the checksum allows, MB/s", header, rows)


def _order(samples: Samples, cell: Cell) -> int:
    return list(dict.fromkeys(one.operation for one in samples.cells())).index(cell.operation)


def _table_by_peer(name: str, samples: Samples) -> Table:
    metrics = [
        metric for metric in _METRICS if any(samples.has(cell, metric) for cell in samples.cells())
    ]
    rows = [
        [
            " ".join(filter(None, [peer, cell.case])),
            *(_spread_text(samples, cell, peer, metric) for metric in metrics),
        ]
        for cell in samples.cells()
        for peer in samples.peers()
        if any(samples.series(cell, peer, metric) for metric in metrics)
    ]
    header = [_IN_MIXED.get(metric, _METRICS[metric]) for metric in metrics]
    return Table(sections.TITLES[name], ["", *header], rows)


def _spread_text(samples: Samples, cell: Cell, peer: str, metric: str) -> str:
    spread = samples.spread(cell, peer, metric)
    if spread is None:
        return ""
    if spread.minimum == spread.maximum:
        return spread.text().partition(" ")[0]
    return spread.text()
