"""`kvring resize`: bring a store to another capacity, also one that is open."""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kvring._native import StoredChunks
from kvring.cli.consent import consent_options, has_consent, losses_of_open
from kvring.cli.disk import check_not_frozen
from kvring.cli.failure import Failure, PartialSuccess
from kvring.cli.opening import facts_of_all, opened, options_of
from kvring.cli.output import count_text, print_json, size_text
from kvring.cli.owner import need_owner
from kvring.cli.parameters import capacities_option, capacity_of_each, json_option
from kvring.cli.places import taken_on_disk
from kvring.cli.progress import progress
from kvring.cli.stores import said_well, store_paths

__all__ = ["resize"]

_EPILOG = """
Exit status: 1 if the store is unchanged, 4 if it is still above the capacity, frozen or 30 s
without progress.
"""

_LOOK_EVERY_S = 0.05
# Leases end, and loads do: what stays for longer is pinned.
_STUCK_S = 30.0
_LOOK_AT_DISK_S = 1.0


@click.command(epilog=_EPILOG, short_help="Change the capacity of a store.")
@store_paths
@capacities_option
@consent_options
@json_option
def resize(
    paths: tuple[Path, ...],
    capacities: tuple[int, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Change the capacity of the store at PATH, a directory, and give space back.

    It evicts all chunks of the data files that go. The owner of an open store does it, and keeps
    pinned chunks. Several paths keep their ratio. The next open takes the capacity of LMCache's
    JSON.
    """
    capacity = capacity_of_each(paths, capacities)
    for path in paths:
        if path.is_block_device():
            raise Failure(
                f"{path} is a block device: its capacity is changed when it is opened; restart its "
                "server with another one"
            )
    facts = facts_of_all(paths, None)
    options = options_of(facts, None) | {"capacity": capacity, "ttl": "off"}
    is_open = any(one["holder"] for one in facts)
    if not is_open:
        # An owner refuses it itself, and lets a full disk get less.
        _refuse_more_than_disk(paths, capacity)
    before = _count(paths, as_json=as_json)
    losses, _ = losses_of_open(paths, **options)
    if not has_consent(losses, yes=yes, dry_run=dry_run, as_json=as_json):
        return 0
    if is_open:
        stats, evicted, trouble = _resize_open(paths, capacity)
    else:
        with opened(paths, **options) as store:
            stats, trouble = _wait(iter(store.stats, None), ())
        evicted = before - stats["keys"]
    _report(stats, evicted, as_json=as_json)
    if over_bytes := _over_bytes(stats):
        raise PartialSuccess(
            f"{size_text(over_bytes)} beyond the capacity are not free yet: "
            + (
                trouble
                or f"{size_text(stats['pinned_bytes'])} are pinned, "
                f"{size_text(stats['leased_bytes'])} leased, others being read or written"
            )
            + "; the owner frees them once they are not"
        )
    return 0


def _refuse_more_than_disk(paths: Sequence[Path], capacity: Sequence[int]) -> None:
    for path, size_bytes in zip(paths, capacity, strict=True):
        most_bytes = taken_on_disk(path) + shutil.disk_usage(path).free
        if size_bytes > most_bytes:
            raise Failure(
                f"--capacity {size_text(size_bytes)} is more than the file system of {path} has "
                f"for it, {size_text(most_bytes)}: what it takes and what is free; free space "
                "there, or take less"
            )


def _count(paths: Sequence[Path], *, as_json: bool) -> int:
    """Tell what each path holds; return how many chunks that are."""
    count = 0
    for path in paths:
        with said_well(path):
            lengths = [chunk["length_bytes"] for chunk in StoredChunks(path)]
        count += len(lengths)
        held = f"{path} holds {count_text(len(lengths), 'chunk')}, {size_text(sum(lengths))}"
        click.echo(held, err=as_json)
    return count


def _resize_open(paths: Sequence[Path], capacity: Sequence[int]) -> tuple[dict[str, Any], int, str]:
    """Have the owner do it, and wait.

    Returns:
        Its figures, how many chunks it has evicted, and what is wrong with its disk.
    """
    found = [path.stat() for path in paths]
    capacities = [
        [one.st_dev, one.st_ino, size_bytes]
        for one, size_bytes in zip(found, capacity, strict=True)
    ]

    def stats() -> dict[str, Any]:
        answer: dict[str, Any] = need_owner(paths[0], None, ask="stats")["stats"]
        return answer

    before = stats()["evicted"]
    need_owner(paths[0], None, ask="resize", capacities=capacities)
    after, trouble = _wait(iter(stats, None), paths)
    reached = [one["capacity_bytes"] for one in after["paths"]]
    if sorted(reached) != sorted(capacity):
        now = ", ".join(map(size_text, reached))
        raise Failure(f"{paths[0]} has another capacity, {now}: another resize came meanwhile")
    return after, after["evicted"] - before, trouble


def _wait(all_stats: Iterator[dict[str, Any]], paths: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Wait until a store is within its capacity, or comes no nearer to it.

    Returns:
        Its figures, and which of these paths takes no change.
    """
    stats = next(all_stats)
    over_bytes, since_s = _over_bytes(stats), time.monotonic()
    has_looked = not paths
    with progress("bringing it down", over_bytes) as advance:
        while over_bytes and time.monotonic() - since_s < _STUCK_S:
            time.sleep(_LOOK_EVERY_S)
            stats = next(all_stats)
            if (now_bytes := _over_bytes(stats)) < over_bytes:
                advance(over_bytes - now_bytes)
                over_bytes, since_s, has_looked = now_bytes, time.monotonic(), not paths
            elif not has_looked and time.monotonic() - since_s > _LOOK_AT_DISK_S:
                has_looked = True
                try:
                    for path in paths:
                        check_not_frozen(path)
                except TimeoutError as error:
                    return stats, str(error)
    return stats, ""


def _over_bytes(stats: dict[str, Any]) -> int:
    over = (path["used_bytes"] - path["capacity_bytes"] for path in stats["paths"])
    return sum(max(one, 0) for one in over)


def _report(stats: dict[str, Any], evicted: int, *, as_json: bool) -> None:
    if as_json:
        names = ("keys", "stored_bytes", "used_bytes", "capacity_bytes")
        print_json({**{name: stats[name] for name in names}, "evicted": evicted})
        return
    click.echo(
        f"it holds {count_text(stats['keys'], 'chunk')}, {size_text(stats['stored_bytes'])}, "
        f"and takes {size_text(stats['used_bytes'])} of {size_text(stats['capacity_bytes'])}; "
        + count_text(evicted, "was evicted", "were evicted")
    )
