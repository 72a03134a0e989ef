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


# What runs in full in every `make test` has each value of each dimension in it.
_CELLS = {
    Cell("extents", "io_uring", "ext4", 512): Form.FULL,
    Cell("extents", "io_uring", "xfs", 4096): Form.SHORT,
    Cell("extents", "io_uring", "tmpfs", None): Form.SHORT,
    Cell("extents", "posix", "ext4", 4096): Form.SHORT,
    Cell("extents", "posix", "xfs", 512): Form.FULL,
    Cell("extents", "posix", "tmpfs", None): Form.SHORT,
    Cell("files", "io_uring", "ext4", 4096): Form.SHORT,
    Cell("files", "io_uring", "xfs", 512): Form.SHORT,
    Cell("files", "io_uring", "tmpfs", None): Form.SHORT,
    Cell("files", "posix", "ext4", 512): Form.SHORT,
    Cell("files", "posix", "xfs", 4096): Form.SHORT,
    Cell("files", "posix", "tmpfs", None): Form.FULL,
    Cell("extents", "io_uring", "raw", 512): Form.SHORT,
    Cell("extents", "io_uring", "raw", 4096): Form.FULL,
    Cell("extents", "posix", "raw", 512): Form.SHORT,
    Cell("extents", "posix", "raw", 4096): Form.SHORT,
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


def all_combinations() -> set[tuple[str, ...]]:
    """Return what the cells must cover: layout, engine, medium, and the blocks of bare devices."""
    directories = itertools.product(LAYOUTS, ENGINES, FILE_SYSTEMS)
    # Layout `files` needs a file system.
    devices = itertools.product(["extents"], ENGINES, ["raw"], map(str, LOGICAL_BLOCKS_BYTES))
    return {*directories, *devices}
