"""Fixtures for the tests of reads of a store by other processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.python.conftest import HANG_DEADLINE_S

if TYPE_CHECKING:
    # They need NumPy; modules of tests are skipped without it, which a conftest.py cannot be.
    from kvring.ranks import Reader
    from tests.python.ranks.owners import HeldLoads, Owner


@pytest.fixture(autouse=True)
def _late_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for one of them hangs, unless the test sets it anew."""
    # A part of an answer's deadline is what the owner waits for.
    deadline_s = 4 * HANG_DEADLINE_S
    monkeypatch.setattr("kvring.ranks.segments.ANSWER_DEADLINE_S", deadline_s)
    monkeypatch.setattr("kvring.ranks.server._SEGMENT_DEADLINE_S", deadline_s)


@pytest.fixture
def _few_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.python.ranks.owners import SEGMENT_BYTES, SEGMENTS

    monkeypatch.setattr("kvring.ranks.segments.SEGMENTS", SEGMENTS)
    monkeypatch.setattr("kvring.ranks.segments.SEGMENT_BYTES", SEGMENT_BYTES)


@pytest.fixture
def owner(store_directory: Path) -> "Iterator[Owner]":
    """An owner of an empty store."""
    from tests.python.ranks.owners import Owner

    owner = Owner(store_directory)
    yield owner
    owner.close()


@pytest.fixture
def held_loads(owner: "Owner", monkeypatch: pytest.MonkeyPatch) -> "Iterator[HeldLoads]":
    """The owner's loads, which the test may hold up."""
    from tests.python.ranks.owners import HeldLoads

    held = HeldLoads(owner)
    monkeypatch.setattr(owner.store, "tasks", held)
    yield held
    held.let_end()


@pytest.fixture
def open_reader(store_directory: Path) -> "Iterator[Callable[[], Reader]]":
    """Make readers of the test's store."""
    from kvring.ranks import Reader

    with ExitStack() as stack:

        def build() -> Reader:
            reader = Reader(store_directory, None)
            stack.callback(reader.close)
            return reader

        yield build


@pytest.fixture
def reader(open_reader: "Callable[[], Reader]") -> "Reader":
    """A reader of the test's store."""
    return open_reader()
