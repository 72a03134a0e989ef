"""`kvring stats` and `kvring top`: what an open store has done, and what it does now."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from kvring.cli.failure import Failure
from kvring.cli.frame import frame
from kvring.cli.output import console, grid, print_json, size_text, table
from kvring.cli.owner import need_owner
from kvring.cli.stores import store_arguments
from kvring.cli.web import Page

__all__ = ["stats", "top"]

_EPILOG = """
Exit status: 0 if all is well, 1 if nobody has the store open, its owner cannot be asked, or there
is no store; 2 for wrong arguments.
"""

_OPERATIONS = {"get": "load", "set": "store", "delete": "delete"}
_BAR_COLUMNS = 30


@click.command(epilog=_EPILOG, short_help="Tell what an open store has done since it was opened.")
@store_arguments
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, with every counter.")
def stats(path: Path, index_path: Path | None, as_json: bool) -> int:
    """Ask the owner of the store at PATH what it has done since it opened it.

    docs/operations.md tells what each counter of --json means.
    """
    answer = need_owner(path, index_path, ask="stats")
    if as_json:
        print_json(answer)
        return 0
    counters = answer["stats"]
    console().print(_shown(path, frame(None, answer, None)))
    shown = grid()
    for name, text in {
        "loaded": f"{size_text(counters['read_bytes'])} in {counters['get_hits']:,} chunks",
        "loads that missed": f"{counters['get_misses']:,}, {counters['get_late']:,} of them late, "
        f"{counters['checksum_mismatch']:,} by checksum",
        "stored": f"{size_text(counters['written_bytes'])} in {counters['set_stored']:,} chunks",
        "stores that failed": f"{counters['set_failed']:,}, "
        f"{counters['set_rejected_queue_full']:,} of them as the queue was full",
        "evicted": f"{counters['evicted']:,}, {size_text(counters['evicted_bytes'])}",
        "expired, purged": f"{counters['expired']:,}, {counters['purged']:,}",
        "errors of the drive": f"{counters['read_errors']:,} reading, "
        f"{counters['write_errors']:,} writing, {counters['sync_errors']:,} syncing",
    }.items():
        shown.add_row(name, text)
    console().print(shown)
    return 0


@click.command(epilog=_EPILOG, short_help="Show what an open store does now, again and again.")
@store_arguments
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="NUMBER", help="End after so many looks."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each look.")
@click.option("--web", is_flag=True, help="Show it as a page, to browsers of this machine.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9401,
    show_default=True,
    help="Of that page; 0 is any.",
)
def top(
    path: Path,
    index_path: Path | None,
    interval_s: float,
    count: int | None,
    as_json: bool,
    web: bool,
    port: int,
) -> int:
    """Show what the store at PATH does, until it is closed or Ctrl-C.

    Its owner is asked. Rates and latencies are those between two looks.
    """
    frames = itertools.islice(_frames(path, index_path, interval_s), count)
    if web:
        _serve(frames, path, index_path, interval_s, port)
        return 0
    if as_json:
        for one in frames:
            print(json.dumps(one), flush=True)
        return 0
    shown = console()
    with Live(console=shown, auto_refresh=False, screen=shown.is_terminal) as live:
        for one in frames:
            if shown.is_terminal:
                live.update(_shown(path, one), refresh=True)
            else:
                shown.print(_shown(path, one))
    return 0


def _frames(path: Path, index_path: Path | None, interval_s: float) -> Iterator[dict[str, Any]]:
    before = need_owner(path, index_path, ask="stats")
    # Not the owner's Unix time, which may be set meanwhile.
    before_s = time.monotonic()
    while True:
        time.sleep(interval_s)
        now = need_owner(path, index_path, ask="stats")
        now_s = time.monotonic()
        yield frame(before if _is_same_open(before, now) else None, now, now_s - before_s)
        before, before_s = now, now_s


def _serve(
    frames: Iterator[dict[str, Any]],
    path: Path,
    index_path: Path | None,
    interval_s: float,
    port: int,
) -> None:
    """Show the page until Ctrl-C, also while nobody has the store open."""
    # Nothing that is wrong from the beginning is left to the page.
    need_owner(path, index_path, ask="stats")

    def shown_until_it_fails(page: Page, frames: Iterator[dict[str, Any]]) -> bool:
        try:
            page.show(frames)
        except Failure as failure:
            page.show([{"time_s": time.time(), "failure": " ".join(failure.sentences)}])
            return False
        return True

    with closing(Page(port)) as page:
        click.echo(f"{page.url} shows {path} until Ctrl-C")
        while not shown_until_it_fails(page, frames):
            time.sleep(interval_s)
            frames = _frames(path, index_path, interval_s)


def _is_same_open(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Tell whether both are of one open of the store: the next one counts from nothing."""
    has_grown = all(
        now["stats"][name] >= before["stats"][name] for name in ("reactor_turns", "set_queued")
    )
    return has_grown and before["process_id"] == now["process_id"]


def _shown(path: Path, one: dict[str, Any]) -> RenderableType:
    return Group(_head(path, one), _traffic(one), _space(one), _namespaces(one))


def _head(path: Path, one: dict[str, Any]) -> Table:
    head = grid()
    head.add_row("store", str(path))
    head.add_row("open in", f"process {one['process_id']}, kvring {one['version']}")
    head.add_row("engine", one["engine"])
    head.add_row("lookups", f"{_rate(one['lookups_per_s'])}{_hits(one)}")
    head.add_row(
        "in flight", f"{one['in_flight']:,}, {size_text(one['store_queue_bytes'])} to store"
    )
    return head


def _hits(one: dict[str, Any]) -> str:
    ratio = one["lookup_hit_ratio"]
    if ratio is None:
        return "none"
    by_capacity = one["hit_ratio_by_capacity"]
    return (
        f"{ratio:.0%} hit; with 1.5 times the capacity {by_capacity['1.5']:.0%}, "
        f"with twice {by_capacity['2']:.0%}"
    )


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:,.0f}/s, "


def _traffic(one: dict[str, Any]) -> Table:
    latencies = ("wait p50", "wait p99", "drive p50", "drive p99", "total p50", "total p99")
    numbers = ("per s", "bytes per s", *(f"{name} ms" for name in latencies))
    shown = table("", *numbers, right=numbers)
    rates = {
        "get": (one["loads_per_s"], one["read_bytes_per_s"]),
        "set": (one["stores_per_s"], one["written_bytes_per_s"]),
        "delete": (None, None),
    }
    for op, name in _OPERATIONS.items():
        count, size_bytes = rates[op]
        row = ["" if count is None else f"{count:,.0f}"]
        row.append("" if size_bytes is None else size_text(size_bytes))
        for phase in ("wait", "device", "total"):
            found = one["latency_ms"][op][phase]
            row += [f"{found[which]:,.2f}" if found else "" for which in ("p50", "p99")]
        shown.add_row(name, *row)
    return shown


def _space(one: dict[str, Any]) -> Table:
    shown = table("path", "used", "", "capacity", "state", right=("used", "capacity"))
    for path in one["paths"]:
        used, capacity = path["used_bytes"], path["capacity_bytes"]
        state = path["reason"] if not path["in_use"] else path["trouble"] or path["note"] or "well"
        bar = ProgressBar(total=max(capacity, 1), completed=used, width=_BAR_COLUMNS)
        shown.add_row(path["path"], size_text(used), bar, size_text(capacity), state)
    return shown


def _namespaces(one: dict[str, Any]) -> Table:
    numbers = ("chunks", "on disk")
    shown = table(*numbers, "namespace", right=numbers)
    for space in one["namespaces"]:
        name = space["name"] or "(keys not of LMCache's form)"
        shown.add_row(f"{space['keys']:,}", size_text(space["allocated_bytes"]), name)
    return shown
