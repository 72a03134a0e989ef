"""`kvring size`: what hit ratio which capacity would bring."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.progress_bar import ProgressBar

from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.output import console, count_text, print_json, size_text, table
from kvring.cli.owner import need_owner
from kvring.cli.parameters import POSITIVE_SIZE, ReadablePath, json_option
from kvring.cli.stores import index_path_option, one_path

__all__ = ["size"]

_BAR_COLUMNS: Final = 50
_SHOWN_CAPACITIES: Final = 12
_MOST_QUOTED: Final = 60


@click.command(short_help="Estimate hit ratios of other capacities.")
@one_path(is_required=False)
@index_path_option
@click.option(
    "--trace",
    type=ReadablePath(exists=True, dir_okay=False, path_type=Path),
    help="Trace: a JSON object with hash_ids per line and request.",
)
@click.option(
    "--chunk-size",
    type=POSITIVE_SIZE,
    help="Length of a chunk of the trace, as in LMCache.",
)
@json_option
def size(
    path: Path | None,
    index_path: Path | None,
    trace: Path | None,
    chunk_size: int | None,
    as_json: bool,
) -> int:
    """Estimate the hit ratio of other capacities.

    For the open store at PATH it estimates 1.5 times and twice the capacity; with admit = adaptive
    the estimate is low. For a trace it computes any capacity with LRU.
    """
    if path is not None and trace is not None:
        raise WrongArguments("name the PATH of an open store or a --trace, not both")
    if path is not None:
        if chunk_size is not None:
            raise WrongArguments("--chunk-size goes with --trace: a store knows its chunks")
        found = _of_store(need_owner(path, index_path, ask="stats")["stats"])
    elif trace is None:
        raise WrongArguments("name the PATH of an open store, or a --trace")
    elif chunk_size is None:
        raise WrongArguments("--trace takes --chunk-size as well")
    else:
        found = _of_trace(_requests(trace), chunk_size)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 0


def _of_store(stats: dict[str, Any]) -> dict[str, Any]:
    hits, misses = stats["exists_hits"], stats["exists_misses"]
    lookups = hits + misses
    if not lookups:
        raise Failure("nothing was looked up since the store was opened")
    capacity_bytes = stats["capacity_bytes"]
    more = {1.0: 0, 1.5: stats["would_hit_at_1_5x"], 2.0: stats["would_hit_at_2x"]}
    return {
        "lookups": lookups,
        "evicted": stats["evicted"],
        "not_admitted": stats["set_not_admitted"] + stats["set_over_write_budget"],
        "capacities": [
            {
                "capacity_bytes": round(times * capacity_bytes),
                "hit_ratio": min(hits + extra, lookups) / lookups,
            }
            for times, extra in more.items()
        ],
    }


def _requests(trace: Path) -> Iterator[list[int]]:
    # What is no UTF-8 is no JSON either, and is named with its line.
    with trace.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            yield _request(line, f"{trace}, line {number}")


def _request(line: str, where: str) -> list[int]:
    try:
        return [int(chunk) for chunk in json.loads(line)["hash_ids"]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        begin = line.strip()[:_MOST_QUOTED]
        message = f"{where} is no request with hash_ids, a list of whole numbers: {begin!r}"
        raise Failure(message) from error


def _of_trace(requests: Iterable[list[int]], chunk_bytes: int) -> dict[str, Any]:
    reached: Counter[int] = Counter()
    distances = _Distances()
    for request in requests:
        # How many chunks a cache must hold, so that all up to here are found.
        needed = 0
        for chunk in request:
            distance = distances.of(chunk)
            needed = -1 if distance is None or needed < 0 else max(needed, distance)
            if needed >= 0:
                reached[needed] += 1
    lookups, different = distances.uses, distances.different
    if not lookups:
        raise Failure("the trace has no request")
    capacities = []
    for part in range(1, _SHOWN_CAPACITIES + 1):
        chunks = max(1, different * part // _SHOWN_CAPACITIES)
        hits = sum(count for needed, count in reached.items() if needed <= chunks)
        capacities.append({"capacity_bytes": chunks * chunk_bytes, "hit_ratio": hits / lookups})
    return {"lookups": lookups, "different_chunks": different, "capacities": capacities}


class _Distances:
    """How many different chunks were used since a chunk was used last, itself counted.

    Mattson et al., "Evaluation techniques for storage hierarchies" (1970); the sums are those of a
    Fenwick tree over the uses, with a 1 where a chunk was used last.
    """

    def __init__(self) -> None:
        self.uses = 0
        self._last: dict[int, int] = {}
        self._tree = [0]

    @property
    def different(self) -> int:
        """How many different chunks were used."""
        return len(self._last)

    def of(self, chunk: int) -> int | None:
        """Count a use, and return the distance of the one before; None of a first use."""
        self.uses += 1
        self._append()
        before = self._last.get(chunk)
        distance = None
        if before is not None:
            distance = len(self._last) - self._sum(before) + 1
            self._add(before, -1)
        self._last[chunk] = self.uses
        self._add(self.uses, 1)
        return distance

    def _append(self) -> None:
        position = self.uses
        # What the parts below it have together.
        total, part, end = 0, position - 1, position - (position & -position)
        while part > end:
            total += self._tree[part]
            part -= part & -part
        self._tree.append(total)

    def _add(self, position: int, change: int) -> None:
        while position < len(self._tree):
            self._tree[position] += change
            position += position & -position

    def _sum(self, position: int) -> int:
        total = 0
        while position:
            total += self._tree[position]
            position -= position & -position
        return total


def _print(found: dict[str, Any]) -> None:
    shown = table("capacity", "hit ratio", "", right=("capacity", "hit ratio"))
    for one in found["capacities"]:
        bar = ProgressBar(total=1.0, completed=one["hit_ratio"], width=_BAR_COLUMNS)
        shown.add_row(size_text(one["capacity_bytes"]), f"{one['hit_ratio']:.1%}", bar)
    click.echo(count_text(found["lookups"], "lookup"))
    console().print(shown)
    if found.get("evicted") == 0:
        click.echo("nothing was evicted: a larger disk brings nothing yet")
    if not_admitted := found.get("not_admitted"):
        stores = count_text(not_admitted, "store was", "stores were")
        click.echo(f"{stores} not admitted: larger disks may bring more")
