"""Kinds of parameters that several commands take."""

from typing import Any

import click

from kvring import ConfigError
from kvring._native import size_bytes

__all__ = ["SIZE", "json_option"]


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
