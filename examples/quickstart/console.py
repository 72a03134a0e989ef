"""What the demo shows while it works: progress on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


class Report:
    """Prints the demo's lines and shows progress on the steps that take long."""

    def __init__(self) -> None:
        """Write to standard output, with a spinner only if that is a terminal."""
        self._console = Console(highlight=False, markup=False, soft_wrap=True)

    def line(self, text: str = "") -> None:
        """Print one line at once, also into a pipe."""
        self._console.print(text)
        self._console.file.flush()

    @contextmanager
    def step(self, description: str) -> Iterator[Callable[[str], None]]:
        """Show that a step is under way; afterwards its line has what it told, and its time."""
        start_s = time.monotonic()
        told: list[str] = []
        if self._console.is_terminal:
            with self._console.status(description):
                yield told.append
            self._console.print(f"{description}: ", end="")
        else:
            self._console.print(f"{description}: ", end="")
            self._console.file.flush()
            yield told.append
        self.line("; ".join([*told, f"{time.monotonic() - start_s:.0f} s in all"]))
