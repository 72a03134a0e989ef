"""What commands have in common in what they print."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

__all__ = [
    "OUTPUT_ERRORS",
    "console",
    "count_text",
    "drop_output",
    "grid",
    "open_closed_streams",
    "print_json",
    "printable",
    "size_text",
    "table",
]

# Commands read stores, and have them written to by kvring, whose errors have sentences: these are
# of where the output goes.
OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_PIPE_WIDTH_COLUMNS = 160
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """Return a text as a terminal may show it: what would command the terminal is escaped.

    Keys and the names in them may hold anything.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


class _Table(Table):
    """Escapes what its cells must not do to a terminal; Rich lets escape sequences through."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(
            *(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options
        )


class _Console(Console):
    """Leaves a broken pipe to the command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return the standard output; what comes from outside (paths, keys) is no markup there."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if is_known else _PIPE_WIDTH_COLUMNS
    return _Console(markup=False, highlight=False, emoji=False, width=width)


def print_json(document: Any) -> None:
    """Print a document to be processed."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with these columns, some of them of numbers."""
    made = _Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_right = column in right
        made.add_column(
            column, justify="right" if is_right else "left", no_wrap=is_right, overflow="fold"
        )
    return made


def grid() -> Table:
    """Return an empty table of names and texts."""
    made = _Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    return made


def open_closed_streams() -> bool:
    """Open /dev/null in place of standard streams that are closed; tell whether the output is open.

    Else the next file that is opened, of a store for instance, takes the number of the stream.
    """
    has_output = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Open until the process ends.
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
    return has_output


def drop_output() -> None:
    """Drop what cannot be written, which Python would try again, and complain, as it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def count_text(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number of things to be read; by default the plural ends in s."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def size_text(size_bytes: float) -> str:
    """Return a number of bytes to be read, in the largest binary unit that fits."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    for unit in _UNITS:
        size_bytes /= 1024
        if abs(size_bytes) < 1024 or unit == _UNITS[-1]:
            break
    return f"{size_bytes:,.1f} {unit}"
