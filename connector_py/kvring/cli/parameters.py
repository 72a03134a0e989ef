"""Kinds of parameters that several commands take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvring import ConfigError
from kvring._native import size_bytes
from kvring.cli.failure import WrongArguments

__all__ = ["SIZE", "capacities_option", "capacity_of_each", "json_option"]


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


SIZE = _Size()

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
