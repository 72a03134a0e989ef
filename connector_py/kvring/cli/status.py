"""`kvring status`: one line on each path: healthy or not, why, and what to type next."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import click

from kvring.cli.health import Health, HealthLook
from kvring.cli.output import print_json, printable
from kvring.cli.parameters import json_option
from kvring.cli.stores import index_path_option, store_paths

__all__ = ["status"]

_EPILOG = """
Exit status: 0 if every path is healthy, else 1.
"""


@click.command(epilog=_EPILOG, short_help="Show whether each path is healthy, in one line.")
@store_paths
@index_path_option
@json_option
def status(paths: tuple[Path, ...], index_path: Path | None, as_json: bool) -> int:
    """Show in one line per PATH whether it is healthy, why not, and what to type next.

    It reports a dead or stuck disk within two seconds. States: healthy, not open, no store, dead
    disk, stuck disk, frozen, damaged index, newer format, failing, full, read-only, path missing,
    renamed, another user's, killed owner, stopped owner, silent owner.
    """
    looks = [HealthLook(path, index_path) for path in paths]
    # Each waits for owners and disks that may not answer.
    with ThreadPoolExecutor(max_workers=len(looks)) as threads:
        found = list(threads.map(HealthLook.result, looks))
    if as_json:
        print_json([{**asdict(one), "is_healthy": one.is_healthy} for one in found])
    else:
        for one in found:
            click.echo(_line(one))
    return 0 if all(one.is_healthy for one in found) else 1


def _line(health: Health) -> str:
    remedy = f"; do: {health.remedy}" if health.remedy else ""
    return printable(f"{health.path}: {health.state}: {health.why}{remedy}")
