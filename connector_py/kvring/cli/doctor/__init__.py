"""`kvring doctor`: whether kvring works here, how well, and what to do about the rest."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from kvring import ConfigError
from kvring._native import size_bytes
from kvring.cli.doctor.data_placement import look_at_placement
from kvring.cli.doctor.drive import (
    device_below,
    drives_below,
    drives_of_mount,
    is_partition,
    look_at_drive,
)
from kvring.cli.doctor.findings import Finding, Level
from kvring.cli.doctor.left_memory import look_at_left_memory
from kvring.cli.doctor.place import (
    existing_part,
    file_system_of,
    look_at_disk,
    look_at_path,
    try_a_store,
)
from kvring.cli.doctor.software import look_at_software
from kvring.cli.doctor.system import look_at_limits, look_at_memory
from kvring.cli.failure import WrongArguments
from kvring.cli.output import console, print_json, table
from kvring.cli.parameters import json_option
from kvring.cli.stores import one_path

__all__ = ["doctor"]

_EPILOG = """
Exit status: 0 if nothing needs action, 3 for warnings (kvring works, with limits), 1 for
errors.
"""

_STATUSES = {Level.OK: 0, Level.NOTE: 0, Level.WARNING: 3, Level.ERROR: 1}
_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "bold red"}


@click.command(epilog=_EPILOG, short_help="Check the machine and a path; print remedies.")
@one_path(is_required=False)
@click.option("--capacity", metavar="SIZE", help="Planned capacity of the store, such as 500GiB.")
@click.option(
    "--clean-shm",
    is_flag=True,
    help="Only remove unused files of a killed vLLM from /dev/shm (on the host).",
)
@json_option
def doctor(path: Path | None, capacity: str | None, clean_shm: bool, as_json: bool) -> int:
    """Check the machine and the place of a store at PATH; print a remedy for each finding.

    Run it as the server runs: same user, container and limits. It checks versions, io_uring,
    limits, memory, file system, free space, rights, device, store and drives (smartctl), and tests
    a small store in a new directory below PATH.
    """
    if clean_shm and path is not None:
        raise WrongArguments("--clean-shm goes without PATH: it looks at /dev/shm alone")
    if clean_shm:
        findings = list(look_at_left_memory(is_cleaning=True))
    else:
        findings = _findings(path, _capacity_bytes(capacity))
    if as_json:
        print_json([{**asdict(one), "level": one.level.name.lower()} for one in findings])
    else:
        _print(findings)
    return _STATUSES[max(one.level for one in findings)]


def _findings(path: Path | None, capacity_bytes: int | None) -> list[Finding]:
    findings = [*look_at_software(), *look_at_limits(), *look_at_memory(), *look_at_left_memory()]
    if path is None:
        return findings
    findings += look_at_disk(path)
    if any(one.check == "disk" for one in findings):
        # What else is looked at there would fail, or never come back.
        for drive in drives_of_mount(path):
            findings += look_at_drive(drive, is_bare=False)
        return findings
    findings += look_at_path(path, capacity_bytes)
    there = existing_part(path)
    device = device_below(there)
    file_system = None if there.is_block_device() else file_system_of(there)
    for drive in drives_below(there):
        findings += look_at_drive(drive, is_bare=path.is_block_device())
        findings += look_at_placement(
            device or drive, drive, file_system, is_partition=is_partition(there)
        )
    if not any(one.level == Level.ERROR for one in findings):
        findings += try_a_store(path)
    return findings


def _capacity_bytes(capacity: str | None) -> int | None:
    try:
        return None if capacity is None else size_bytes(capacity)
    except ConfigError as error:
        raise WrongArguments(f"--capacity: {error}") from error


def _print(findings: list[Finding]) -> None:
    shown = table("", "check", "found", "do")
    for one in findings:
        level = Text(one.level.name.lower(), style=_STYLES[one.level])
        shown.add_row(level, one.check, one.what, one.remedy)
    console().print(shown)
