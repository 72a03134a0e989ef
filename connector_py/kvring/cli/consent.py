"""What a command would remove: computed, shown and asked before anything is changed."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvring import ConfigError
from kvring._native import forecast_open
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.output import count_text, print_json, printable, size_text
from kvring.cli.stores import said_well

__all__ = ["Losses", "consent_options", "has_consent", "losses_of_open"]

_REASONS = {
    "beyond_capacity": "beyond the capacity",
    "expired": "expired",
    "moved": "of other paths with these paths and capacities",
    "stale": "maybe stale, as the path was away while the others went on",
}


def consent_options(command: Any) -> Any:
    """Give a command that may remove chunks the options `yes` and `dry_run`."""
    yes = click.option("--yes", is_flag=True, help="Remove without asking.")
    dry_run = click.option("--dry-run", is_flag=True, help="Show what would be removed.")
    return yes(dry_run(command))


@dataclass(frozen=True)
class Losses:
    """Chunks that would be removed, and what is to be said of it."""

    keys: int
    size_bytes: int
    sentences: list[str]


def losses_of_open(paths: Sequence[Path], **options: Any) -> tuple[Losses, list[Path]]:
    """Compute from the files what an open with these options would remove. Nothing is changed.

    Returns:
        What that is, and which of the paths have no store yet.

    Raises:
        Failure: What is at one of the paths cannot be read.
        WrongArguments: The options are wrong.
    """
    try:
        with said_well(paths[0]):
            forecasts = forecast_open([str(path) for path in paths], **options)
    except Failure as failure:
        if isinstance(failure.__cause__, ConfigError):
            raise WrongArguments(*failure.sentences) from failure
        raise
    keys = size_bytes = 0
    sentences = []
    for one in forecasts:
        for reason, why in _REASONS.items():
            removed, removed_bytes = one[reason]
            if removed:
                sentences.append(
                    f"{one['path']}: {removed:,} of {count_text(one['stored'][0], 'chunk')}, "
                    f"{size_text(removed_bytes)}, {why}, and would be removed"
                )
            keys, size_bytes = keys + removed, size_bytes + removed_bytes
    new = [Path(one["path"]) for one in forecasts if one["is_new"]]
    if keys and new:
        sentences += [
            f"{path} has no store: one would be made there, and it takes keys of the other paths; "
            "how many is an estimate"
            for path in new
        ]
    return Losses(keys, size_bytes, sentences), new


def has_consent(losses: Losses, *, yes: bool, dry_run: bool, as_json: bool = False) -> bool:
    """Show what would be removed, and ask whether it may. Returns false for a dry run.

    Raises:
        Failure: Something would be removed without a terminal to confirm it, or the answer was no.
    """
    for sentence in losses.sentences:
        click.echo(printable(sentence), err=True)
    if dry_run:
        if as_json:
            print_json({"dry_run": True, "keys": losses.keys, "bytes": losses.size_bytes})
        else:
            click.echo(
                f"{count_text(losses.keys, 'chunk')}, {size_text(losses.size_bytes)}, would be "
                "removed; nothing was changed"
            )
        return False
    if losses.keys and not yes:
        if not sys.stdin.isatty():
            raise Failure(
                f"{count_text(losses.keys, 'chunk')} would be removed, and there is no terminal "
                "to confirm it: nothing was changed; use --yes"
            )
        if not click.confirm("Removed chunks are lost. Go on?"):
            raise Failure("nothing was changed")
    return True
