"""What `kvring top` and `stats` print: as wide as the terminal, and nothing is cut."""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from kvring.cli.output import grid, size_text, table

__all__ = ["screen"]

_OPERATIONS: Final = {"get": "load", "set": "store", "delete": "delete"}
_PHASES: Final = {"wait": "wait", "device": "drive", "total": "total"}
_BAR_COLUMNS: Final = 20
# Below that paths need the room of the bars.
_NARROW_COLUMNS: Final = 100
# By what is left out first where the terminal is narrow.
_LATENCIES: Final = (
    ("wait", "p50"),
    ("device", "p50"),
    ("wait", "p99"),
    ("total", "p50"),
    ("device", "p99"),
)
_MEASURED_COLUMNS: Final = 10_000
# Of a table with a row, and the line that tells of more.
_LEAST_TABLE_LINES: Final = 6


def screen(
    console: Console, path: Path, one: dict[str, Any], most_lines: int | None = None
) -> RenderableType:
    """Return a frame (frame.py) as it fits a console.

    Columns that have no room are left out, those of the least use first.

    Args:
        console: Where it is printed.
        path: The path that was asked for.
        one: The frame.
        most_lines: How many lines there are. Of long lists the first are shown, and how many more
            there are.
    """
    parts: list[RenderableType] = [_head(path, one), "", _traffic(console, one)]
    paths = sorted(one["paths"], key=lambda path: not _trouble(path))
    lists = (
        _List("path", paths, _space, least_rows=1, lines_after=_LEAST_TABLE_LINES),
        _List("namespace", one["namespaces"], _namespaces, least_rows=0, lines_after=0),
    )
    for rows in lists:
        left = None if most_lines is None else most_lines - _lines(console, parts)
        parts += _listed(console, rows, left)
    return Group(*parts)


class _List(NamedTuple):
    """Rows of a table, how many are shown in any case, and the lines to leave for what follows."""

    what: str
    rows: list[dict[str, Any]]
    table_of: Callable[[Console, list[dict[str, Any]]], Table]
    least_rows: int
    lines_after: int


class _Column(NamedTuple):
    """A column of numbers, and which of two that have no room is left out first."""

    header: str
    cells: list[str]
    rank: int


def _lines(console: Console, parts: Iterable[RenderableType]) -> int:
    return len(console.render_lines(Group(*parts), pad=False))


def _listed(console: Console, one: _List, lines_left: int | None) -> list[RenderableType]:
    """Return a table of the rows that fit into so many lines, and how many more there are."""
    shown = len(one.rows)
    parts: list[RenderableType] = ["", one.table_of(console, one.rows)]
    if lines_left is None:
        return parts
    while shown > one.least_rows and _lines(console, parts) > lines_left - one.lines_after:
        shown -= 1
        more = len(one.rows) - shown
        line = f"{more} more {one.what}{'s' if more > 1 else ''} (kvring stats --json has all)"
        parts = ["", one.table_of(console, one.rows[:shown]), line] if shown else [line]
    return parts


def _bare(table: Table) -> Table:
    """Leave out the empty lines around a table: a terminal has few."""
    table.show_edge = False
    return table


def _fitting(console: Console, labels: list[str], columns: list[_Column]) -> Table:
    """Return a table with the columns that have something, and room."""
    left = [column for column in columns if any(column.cells)]
    wide = Console(width=_MEASURED_COLUMNS)
    while True:
        made = _bare(table("", *(column.header for column in left)))
        for column in made.columns:
            column.no_wrap = True
        for column in made.columns[1:]:
            column.justify = "right"
        for label, *cells in zip(labels, *(column.cells for column in left), strict=True):
            if any(cells) or label != _OPERATIONS["delete"]:
                made.add_row(label, *cells)
        if not left or wide.measure(made).maximum <= console.width:
            return made
        left.remove(min(left, key=lambda column: column.rank))


def _head(path: Path, one: dict[str, Any]) -> Table:
    head = grid()
    head.add_row("store", str(path))
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(one["time_s"]))
    head.add_row("time", f"{when}, open for {timedelta(seconds=one['open_s'])}")
    # Without the flags of the ring.
    engine = one["engine"].partition(" (")[0]
    head.add_row("open in", f"process {one['process_id']}, kvring {one['version']}, {engine}")
    head.add_row("lookups", f"{_rate(one['lookups_per_s'])}{_hits(one)}")
    head.add_row("errors", _failures(one))
    head.add_row(
        "in flight", f"{one['in_flight']:,}, {size_text(one['store_queue_bytes'])} to store"
    )
    return head


def _hits(one: dict[str, Any]) -> str:
    since_open, ratio = one["hit_ratio_since_open"], one["lookup_hit_ratio"]
    if since_open is None:
        return "none since the open"
    if ratio is None:
        return f"none; since the open {since_open:.1%} hit"
    by_capacity = one["hit_ratio_by_capacity"]
    before = "" if one["over_s"] is None else f" (since the open {since_open:.1%})"
    return (
        f"{ratio:.1%} hit{before}; with 1.5 times the capacity {by_capacity['1.5']:.1%}, "
        f"with twice {by_capacity['2']:.1%}"
    )


def _failures(one: dict[str, Any]) -> str:
    """Return how often what has failed since the open, and which of that since the last look."""
    found = [
        f"{name} {count['since_open']:,}" + (f" (+{count['now']:,})" if count["now"] else "")
        for name, count in one["failures"].items()
        if count["since_open"]
    ]
    return ", ".join(found) or "none since the open"


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:,.0f}/s, "


def _traffic(console: Console, one: dict[str, Any]) -> Table:
    rates = {
        "get": (one["loads_per_s"], one["read_bytes_per_s"]),
        "set": (one["stores_per_s"], one["written_bytes_per_s"]),
        "delete": (None, None),
    }
    columns = [
        _Column("\nper s", [_number(rates[op][0]) for op in _OPERATIONS], len(_LATENCIES) + 2),
        _Column(
            "bytes\nper s",
            ["" if rates[op][1] is None else size_text(rates[op][1] or 0) for op in _OPERATIONS],
            len(_LATENCIES) + 1,
        ),
    ]
    for phase, name in _PHASES.items():
        for which in ("p50", "p99"):
            of_op = [one["latency_ms"][op][phase] for op in _OPERATIONS]
            cells = [f"{found[which]:,.2f}" if found else "" for found in of_op]
            is_last = (phase, which) not in _LATENCIES
            rank = len(_LATENCIES) + 3 if is_last else _LATENCIES.index((phase, which))
            columns.append(_Column(f"{name}\n{which} ms", cells, rank))
    return _fitting(console, list(_OPERATIONS.values()), columns)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _trouble(path: dict[str, Any]) -> str:
    return str(path["trouble"] if path["in_use"] else f"out of use: {path['reason']}")


def _space(console: Console, paths: list[dict[str, Any]]) -> Table:
    numbers = ("used", "capacity", "full")
    has_room = console.width >= _NARROW_COLUMNS
    shown = _bare(table(*numbers, *([""] if has_room else []), "path, state", right=numbers))
    for path in paths:
        used, capacity = path["used_bytes"], max(path["capacity_bytes"], 1)
        cells: list[RenderableType] = [
            size_text(used),
            size_text(path["capacity_bytes"]),
            f"{used / capacity:.0%}",
        ]
        if has_room:
            cells.append(ProgressBar(total=capacity, completed=used, width=_BAR_COLUMNS))
        state = _trouble(path) or path["note"] or "healthy"
        shown.add_row(*cells, f"{path['path']}: {state}")
    return shown


def _namespaces(console: Console, namespaces: list[dict[str, Any]]) -> Table:
    del console
    numbers = ("chunks", "on disk")
    shown = _bare(table(*numbers, "namespace", right=numbers))
    for space in namespaces:
        name = space["name"] or "(keys not of LMCache's form)"
        shown.add_row(f"{space['keys']:,}", size_text(space["allocated_bytes"]), name)
    return shown
