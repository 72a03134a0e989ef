"""Kinds of parameters that several commands take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvring import ConfigError
from kvring._native import size_bytes
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.users import is_forbidden, whose

__all__ = [
    "SIZE",
    "STORE_PATH",
    "ReadablePath",
    "capacities_option",
    "capacity_of_each",
    "json_option",
]


class _Size(click.ParamType[int]):
    """A number of bytes, written as in the options of a store."""

    name = "SIZE"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return size_bytes(value)
        except ConfigError as error:
            self.fail(str(error), parameter, context)


class _StorePath(click.Path):
    """A path that is not looked at before the command does: its disk may be stuck, or another's."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        del parameter, context
        return Path(value)


class ReadablePath(click.Path):
    """A path that is there; of one that another user keeps from this one that is said."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Check it, and return it."""
        if value != "-" and is_forbidden(Path(value)):
            raise Failure(whose(Path(value)))
        return super().convert(value, parameter, context)


SIZE = _Size()
STORE_PATH = _StorePath()

json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")

capacities_option = click.option(
    "--capacity",
    "capacities",
    type=SIZE,
    required=True,
    multiple=True,
    help="Of each path, as in LMCache's JSON; once for all paths, or once for each in their order.",
)


def capacity_of_each(paths: Sequence[Path], capacities: Sequence[int]) -> list[int]:
    """Return the capacity of each path, in bytes.

    Raises:
        WrongArguments: There is neither one for all nor one for each.
    """
    if len(capacities) == 1:
        return [capacities[0]] * len(paths)
    if len(capacities) != len(paths):
        message = (
            f"--capacity is given {len(capacities)} times for {len(paths)} paths: give it once, or "
            "once for each path"
        )
        raise WrongArguments(message)
    return list(capacities)
