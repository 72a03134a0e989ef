"""Kinds of parameters that several commands take."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvring import ConfigError
from kvring._native import size_bytes
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.output import count_text
from kvring.cli.users import is_forbidden, whose

__all__ = [
    "POSITIVE_SIZE",
    "SIZE",
    "STORE_PATH",
    "FiniteRange",
    "ReadablePath",
    "capacities_option",
    "capacity_of_each",
    "json_option",
]


# click 8.1 has the type without its parameter.
if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType


class _Size(_IntType):
    """A number of bytes, written as in the options of a store."""

    name = "SIZE"

    def __init__(self, least_bytes: int = 0) -> None:
        """Take no less than that."""
        self._least_bytes = least_bytes

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            converted = size_bytes(value)
        except ConfigError as error:
            self.fail(f"{value!r} is not valid: {error}", parameter, context)
        if converted < self._least_bytes:
            self.fail(f"{value!r} is less than {self._least_bytes} B", parameter, context)
        return converted


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
POSITIVE_SIZE = _Size(least_bytes=1)


class FiniteRange(click.FloatRange):
    """A number of a range, and neither infinity nor no number."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Return the number."""
        converted = super().convert(value, parameter, context)
        if not math.isfinite(converted):
            self.fail(f"{value!r} is not finite", parameter, context)
        return converted


class _StorePath(click.Path):
    """A path that is not looked at before the command does: its disk may be stuck, or another's.

    An empty one is a variable that is not set, and no name for `.`.
    """

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        if not value:
            self.fail("it is empty; write . for this directory", parameter, context)
        return Path(value)


STORE_PATH = _StorePath()

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

capacities_option = click.option(
    "--capacity",
    "capacities",
    type=SIZE,
    required=True,
    multiple=True,
    help="Capacity of each path: once for all, or once per path in their order.",
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
            f"--capacity is given {len(capacities)} times for {count_text(len(paths), 'path')}: "
            "give it once, or once for each path"
        )
        raise WrongArguments(message)
    return list(capacities)
