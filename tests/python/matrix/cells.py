"""The cells of the test matrix, and in which form each runs."""

import enum
import itertools
import os
from typing import NamedTuple

LAYOUTS = ("extents", "files")
ENGINES = ("io_uring", "posix")
FILE_SYSTEMS = ("ext4", "xfs", "tmpfs")
LOGICAL_BLOCKS_BYTES = (512, 4096)


class Form(enum.Enum):
    """How much of the suite a cell runs."""

    FULL = "full"
    SHORT = "short"
    LEFT_OUT = "left out"


class Cell(NamedTuple):
    """What a store lies on, how chunks lie in it, and what moves its bytes."""

    layout: str
    engine: str
    # A file system, or "raw" for a bare loop device.
    medium: str
    # Logical blocks of the loop device, also of that below a file system; None for tmpfs.
    block_bytes: int | None

    def __str__(self) -> str:
        """Return the name of the cell, as in the ids of its tests."""
        return "-".join(str(part) for part in self if part is not None)


def _on_file_system(layout: str, engine: str, medium: str) -> Cell:
    # Each engine on each file system has both lengths, one with each layout.
    is_short = (layout == "extents") == ((engine == "io_uring") == (medium == "ext4"))
    return Cell(layout, engine, medium, None if medium == "tmpfs" else 512 if is_short else 4096)


# What runs in full in every `make test` has each value of each dimension in it.
FULL = {
    Cell("extents", "io_uring", "ext4", 512),
    Cell("extents", "posix", "xfs", 512),
    Cell("files", "posix", "tmpfs", None),
    Cell("extents", "io_uring", "raw", 4096),
}
_CELLS = {
    cell: Form.FULL if cell in FULL else Form.SHORT
    for cell in (
        *itertools.starmap(_on_file_system, itertools.product(LAYOUTS, ENGINES, FILE_SYSTEMS)),
        # Layout `files` needs a file system.
        *itertools.starmap(
            Cell, itertools.product(["extents"], ENGINES, ["raw"], LOGICAL_BLOCKS_BYTES)
        ),
    )
}

# What KVRING_MATRIX asks for: all in full; some of them; a look at those some.
FORMS = {
    "full": dict.fromkeys(_CELLS, Form.FULL),
    "default": _CELLS,
    "quick": {
        cell: Form.SHORT if form is Form.FULL else Form.LEFT_OUT for cell, form in _CELLS.items()
    },
}
CHOICE = os.environ.get("KVRING_MATRIX", "default")
if CHOICE not in FORMS:
    raise ValueError(f"KVRING_MATRIX is one of {', '.join(FORMS)}, not {CHOICE!r}")
CELLS = FORMS[CHOICE]
RUNNING = [cell for cell, form in CELLS.items() if form is not Form.LEFT_OUT]
