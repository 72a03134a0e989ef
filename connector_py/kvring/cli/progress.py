"""How far long work is, on standard error, where somebody looks at it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

__all__ = ["Advance", "progress"]


class Advance(Protocol):
    """Tells that so many bytes more are done."""

    def __call__(self, size_bytes: int, /) -> None:
        """Go on."""


@contextmanager
def progress(what: str, total_bytes: int | None) -> Iterator[Advance]:
    """Show a bar until the end; `total_bytes` is None where nobody knows."""
    console = Console(stderr=True)
    if not console.is_terminal:
        # A disabled Progress of rich 13 prints an empty line.
        yield lambda _size_bytes: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda size_bytes: bar.advance(task, size_bytes)
