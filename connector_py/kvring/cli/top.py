"""`kvring stats` and `kvring top`: what an open store has done, and what it does now."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from kvring.cli.failure import Failure
from kvring.cli.output import console, grid, print_json, size_text
from kvring.cli.owner import need_owner
from kvring.cli.parameters import FiniteRange, json_option
from kvring.cli.screen import screen
from kvring.cli.stores import store_arguments
from kvring.cli.web import Page
from kvring.frame import frame

__all__ = ["stats", "top"]


@click.command(short_help="Show the counters of an open store.")
@store_arguments
@json_option
def stats(path: Path, index_path: Path | None, as_json: bool) -> int:
    """Show the counters of the store at PATH since its open (docs/reference/metrics.md).

    It asks the owner, which answers only its own user and root.
    """
    answer = need_owner(path, index_path, ask="stats")
    if as_json:
        print_json(answer)
        return 0
    counters = answer["stats"]
    printed = console()
    printed.print(screen(printed, path, frame(None, answer, None)))
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
    printed.print("", shown)
    return 0


@click.command(short_help="Show current rates of an open store.")
@store_arguments
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.1, max=86_400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two samples.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="End after this number of samples.",
)
@json_option
@click.option("--web", is_flag=True, help="Serve a page at http://127.0.0.1:PORT/ instead.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9401,
    show_default=True,
    metavar="PORT",
    help="Port of that page; 0 takes any free one.",
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
    """Show rates and latencies of the store at PATH between two samples, until Ctrl-C.

    It asks the owner as stats does.
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
                live.update(screen(shown, path, one, shown.height), refresh=True)
            else:
                shown.print(screen(shown, path, one))
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
    before = need_owner(path, index_path, ask="history")

    def shown_until_it_fails(page: Page, frames: Iterator[dict[str, Any]]) -> bool:
        try:
            page.show(frames)
        except Failure as failure:
            page.fail(" ".join(failure.sentences))
            return False
        return True

    with closing(Page(port, str(path), interval_s)) as page:
        page.recall(before)
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
