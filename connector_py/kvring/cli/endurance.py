"""How much an open store writes to its drives, and how long they last at that rate."""

import os
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from kvring.cli.doctor.drive import device_below
from kvring.cli.failure import Failure
from kvring.cli.output import console, grid, size_text, table
from kvring.cli.owner import ask_owner
from kvring.mounts import mount_of

__all__ = ["dwpd_option", "print_writes", "writes_of"]

# Vendors rate drives by drive writes per day (DWPD) over a warranty of five years.
_RATED_YEARS: Final = 5
_DAYS_PER_YEAR: Final = 365
_DAY_S: Final = 86_400
_MOST_DWPD: Final = 100
_LONGEST_TOLD_YEARS: Final = 100
_SECTOR_BYTES: Final = 512


def _checked(context: click.Context, parameter: click.Parameter, dwpd: float) -> float:
    if 0 < dwpd <= _MOST_DWPD:
        return dwpd
    message = (
        f"{dwpd:g} is not above 0 and at most {_MOST_DWPD}; the drive's data sheet has its drive "
        "writes per day"
    )
    raise click.BadParameter(message, context, parameter)


dwpd_option = click.option(
    "--dwpd",
    type=float,
    default=1.0,
    show_default=True,
    metavar="NUMBER",
    callback=_checked,
    help=f"Rated drive writes per day, over {_RATED_YEARS} years.",
)


def writes_of(path: Path, index_path: Path | None, dwpd: float) -> dict[str, Any]:
    """Return what the store at `path` has written since its open, and how long its drives last.

    Raises:
        Failure: The store is not open, its owner cannot be asked, or does not tell it.
    """
    answer = ask_owner(path, index_path, ask="stats")
    if answer is None:
        message = f"nobody has {path} open, and only an owner counts writes; ask while it is open"
        raise Failure(message)
    stats, version = answer["stats"], answer["version"]
    if "open_s" not in stats:
        raise Failure(
            f"kvring {version}, which has {path} open, does not count them by path; upgrade it"
        )
    over_s, written_bytes, read_bytes = (
        stats[name] for name in ("open_s", "written_bytes", "read_bytes")
    )
    if not over_s:
        raise Failure(f"{path} was opened less than a second ago; ask again later")
    paths = stats["paths"]
    places = [path.absolute()] if len(paths) == 1 else [Path(one["path"]) for one in paths]
    return {
        "over_s": over_s,
        "written_bytes": written_bytes,
        "written_bytes_per_day": written_bytes / over_s * _DAY_S,
        "written_per_loaded_byte": written_bytes / read_bytes if read_bytes else None,
        "not_admitted_bytes": stats["not_admitted_bytes"],
        "over_write_budget_bytes": stats["over_write_budget_bytes"],
        "dwpd": dwpd,
        "drives": _lives(places, [one["written_bytes"] for one in paths], over_s, dwpd),
    }


def _lives(
    places: list[Path], written_bytes: list[int], over_s: int, dwpd: float
) -> list[dict[str, Any]]:
    drives: defaultdict[tuple[str, int | None], dict[Path, int]] = defaultdict(dict)
    for place, at_place_bytes in zip(places, written_bytes, strict=True):
        drives[_drive(place)][place] = at_place_bytes
    lives = []
    for (name, size_bytes), written in drives.items():
        per_day = sum(written.values()) / over_s * _DAY_S
        rated_bytes = (
            None if size_bytes is None else round(size_bytes * dwpd * _DAYS_PER_YEAR * _RATED_YEARS)
        )
        life = {
            "drive": name,
            "paths": list(map(str, written)),
            "size_bytes": size_bytes,
            "rated_bytes": rated_bytes,
            "written_bytes": sum(written.values()),
            "written_bytes_per_day": per_day,
            "lasts_years": rated_bytes / per_day / _DAYS_PER_YEAR
            if per_day and rated_bytes is not None
            else None,
        }
        lives.append(life)
    return lives


def _drive(place: Path) -> tuple[str, int | None]:
    """Return what a path is or lies on, and its size."""
    unknown = f"unknown, of {place}", None
    if not place.is_absolute():
        # It is of the owner's directory, which is not told.
        return unknown
    try:
        device = device_below(place)
        if device is not None:
            sectors = (device / "size").read_text(encoding="ascii")
            return f"/dev/{device.name}", int(sectors) * _SECTOR_BYTES
        # Of btrfs, overlayfs and tmpfs, which have no device of their own.
        there = os.statvfs(place)
        mount = mount_of(place)
    except OSError:
        return unknown
    return (
        f"file system of {mount.mount_point if mount else place}",
        there.f_blocks * there.f_frsize,
    )


def print_writes(writes: dict[str, Any]) -> None:
    """Print it, within 80 columns."""
    since = timedelta(seconds=writes["over_s"])
    per_byte = writes["written_per_loaded_byte"]
    facts = {
        "written": f"{size_text(writes['written_bytes_per_day'])} a day: "
        f"{size_text(writes['written_bytes'])} since the open {since} ago",
        "per byte loaded": "nothing was loaded" if per_byte is None else f"{per_byte:.2f} bytes",
        "not written": f"{size_text(writes['not_admitted_bytes'])} by admit, "
        f"{size_text(writes['over_write_budget_bytes'])} by write_budget",
    }
    shown = grid()
    for name, text in facts.items():
        shown.add_row(name, text)
    console().print(shown)
    numbers = ("size", "written a day", "rated for", "lasts")
    drives = table(*numbers, "drive", right=numbers)
    for one in writes["drives"]:
        size_bytes, rated_bytes = one["size_bytes"], one["rated_bytes"]
        drives.add_row(
            "unknown" if size_bytes is None else size_text(size_bytes),
            size_text(one["written_bytes_per_day"]),
            "unknown" if rated_bytes is None else size_text(rated_bytes),
            _lasts(one),
            one["drive"],
        )
    console().print(drives)
    click.echo(
        f"A new drive, rated for {writes['dwpd']:g} DWPD (drive writes per day, --dwpd) over "
        f"{_RATED_YEARS} years.\nOnly chunks count: the index, the file system and other programs "
        "write more."
    )


def _lasts(drive: dict[str, Any]) -> str:
    years = drive["lasts_years"]
    if years is None:
        return "unknown" if drive["size_bytes"] is None else "unwritten"
    if years > _LONGEST_TOLD_YEARS:
        return f"over {_LONGEST_TOLD_YEARS} years"
    return f"{years:.1f} years"
