"""Plain tables on standard output."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table


def make_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts, the first column to the left and the others to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, text in enumerate(header):
        table.add_column(text, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table) -> None:
    """Print a table."""
    # In a pipe rich takes 80 columns and would cut figures off.
    console = Console()
    console.width = max(console.width, 150)
    console.print(table)
