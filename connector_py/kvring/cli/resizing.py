"""`kvring resize`: bring a store that nobody has open to another capacity."""

import time
from pathlib import Path

import click

from kvring._native import StoredChunks
from kvring.cli.consent import consent_options, has_consent, losses_of_open
from kvring.cli.failure import Failure
from kvring.cli.opening import opened, store_options
from kvring.cli.output import count_text, print_json, size_text
from kvring.cli.parameters import capacities_option, capacity_of_each, json_option
from kvring.cli.stores import said_well, store_paths

__all__ = ["resize"]

_EPILOG = """
Exit status: 0 if the store is within its capacity, 1 if it is as it was, 2 for wrong arguments.
"""

_LOOK_EVERY_S = 0.05
_DEADLINE_S = 600.0


@click.command(epilog=_EPILOG, short_help="Bring a store to another capacity.")
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
    """Bring the store at PATH, a directory, to another capacity, and give back the space.

    Nobody may have it open. The capacity is an option of whoever opens the store: LMCache's JSON is
    to be changed as well. Opening the store does the same; this tells before what is lost, and
    asks. What lies in the part of the files that goes is evicted, whenever it was used last.
    """
    capacity = capacity_of_each(paths, capacities)
    options, before = store_options(paths, None), 0
    for path in paths:
        if path.is_block_device():
            raise Failure(f"{path} is a block device: its capacity is its size, or what is opened")
        with said_well(path):
            lengths = [chunk["length_bytes"] for chunk in StoredChunks(path)]
        before += len(lengths)
        stored_bytes = sum(lengths)
        held = f"{path} holds {count_text(len(lengths), 'chunk')}, {size_text(stored_bytes)}"
        click.echo(held, err=as_json)
    options |= {"capacity": capacity, "ttl": "off"}
    losses, _ = losses_of_open(paths, **options)
    if not has_consent(losses, yes=yes, dry_run=dry_run, as_json=as_json):
        return 0
    with opened(paths, **options) as store:
        deadline_s = time.monotonic() + _DEADLINE_S
        while any(path["used_bytes"] > path["capacity_bytes"] for path in store.stats()["paths"]):
            if time.monotonic() > deadline_s:
                raise Failure("it did not come down to its capacity: the log tells why")
            time.sleep(_LOOK_EVERY_S)
        stats = store.stats()
    evicted = before - stats["keys"]
    if as_json:
        names = ("keys", "stored_bytes", "used_bytes", "capacity_bytes")
        print_json({**{name: stats[name] for name in names}, "evicted": evicted})
    else:
        click.echo(
            f"it holds {count_text(stats['keys'], 'chunk')}, {size_text(stats['stored_bytes'])}, "
            f"and takes {size_text(stats['used_bytes'])} of {size_text(stats['capacity_bytes'])}; "
            + count_text(evicted, "was evicted", "were evicted")
        )
    return 0
