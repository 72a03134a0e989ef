"""What the demo shows while it works: progress on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]


class Report:
    """Prints the demo's lines and shows progress on the steps that take long."""

    def __init__(self) -> None:
        """Write to standard output, with progress bars only if that is a terminal."""
        self._console = Console(highlight=False, markup=False, soft_wrap=True)

    def line(self, text: str = "") -> None:
        """Print one line at once, also into a pipe."""
        self._console.print(text)
        self._console.file.flush()

    @contextmanager
    def step(self, description: str) -> Iterator[None]:
        """Show that a step of unknown length is under way, and afterwards how long it took."""
        start_s = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(description):
                yield
        else:
            self.line(f"{description} ...")
            yield
        self.line(f"{description}: done in {time.monotonic() - start_s:.1f} s")

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Show how far a step of ``total`` units is; the yielded function advances it."""
        start_s = time.monotonic()
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self._console, transient=True) as progress:
                task = progress.add_task(description, total=total)
                yield lambda amount: progress.advance(task, amount)
        else:
            self.line(f"{description} ({total} {unit}) ...")
            yield lambda _amount: None
        self.line(f"{description}: {total} {unit} in {time.monotonic() - start_s:.1f} s")
