"""More readers than segments, and readers that keep some."""

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader
from tests.python.conftest import HANG_DEADLINE_S, until
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, PREFIX, SEGMENT_BYTES, SEGMENTS, Owner
from tests.python.ranks.readers import at_the_same_time, bounded, holding, load


@FEW_SEGMENTS
def test_more_readers_than_segments_with_several_pieces_each_get_all(
    owner: Owner, open_reader: Callable[[], Reader]
) -> None:
    owner.put(KEYS, [SEGMENT_BYTES])
    readers = [open_reader() for _ in range(2 * SEGMENTS)]
    together = threading.Barrier(len(readers))

    def read(number: int) -> Callable[[], None]:
        keys = KEYS[4 * number : 4 * number + 4]

        def work() -> None:
            for _ in range(5):
                together.wait(HANG_DEADLINE_S)
                assert load(readers[number], keys, [SEGMENT_BYTES]) == [True] * 4

        return work

    with at_the_same_time(*map(read, range(len(readers)))):
        pass


@FEW_SEGMENTS
def test_several_threads_have_one_reader(owner: Owner, reader: Reader) -> None:
    lengths = (5000, 8192)
    owner.put(KEYS[:20], lengths)

    def read(number: int) -> Callable[[], None]:
        choose = random.Random(number)

        def work() -> None:
            for _ in range(30):
                keys = choose.sample(KEYS, choose.randint(1, 9))
                expected = [key in KEYS[:20] for key in keys]
                assert load(reader, keys, lengths) == expected
                assert reader.exists(PREFIX, keys, 2) == expected

        return work

    with at_the_same_time(*map(read, range(5))):
        pass


@FEW_SEGMENTS
def test_a_reader_that_keeps_segments_costs_others_a_miss_and_no_more(
    owner: Owner,
    open_reader: Callable[[], Reader],
    store_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner.put(KEYS[: SEGMENTS + 1], [1000])
    reader = open_reader()
    with holding(store_directory, KEYS[:SEGMENTS], [1000]), monkeypatch.context() as patch:
        patch.setattr("kvring.ranks.server._SEGMENT_DEADLINE_S", 0.2)
        assert load(reader, KEYS[SEGMENTS : SEGMENTS + 1], [1000]) == [False]
        # What they hold is there for all.
        assert load(reader, KEYS[:1], [1000]) == [True]
        assert reader.exists(PREFIX, KEYS[: SEGMENTS + 1], 1) == [True] * (SEGMENTS + 1)
    assert load(reader, KEYS[SEGMENTS : SEGMENTS + 1], [1000]) == [True]


def hold_segments(path: str) -> None:
    """Hold all segments until this process is killed."""
    with holding(Path(path), KEYS[:8], [1000]):
        print("ready", flush=True)
        sys.stdin.readline()


def test_a_reader_that_is_killed_gives_its_segments_back(
    owner: Owner, reader: Reader, store_directory: Path, start_child: Callable[..., Any]
) -> None:
    owner.put(KEYS[:9], [1000])
    child = start_child(hold_segments, str(store_directory))
    assert all(one.readers for one in owner.server._segments)
    child.kill()
    child.wait(HANG_DEADLINE_S)
    assert bounded(lambda: load(reader, KEYS[8:9], [1000])) == [True]
    until("all are free", lambda: not owner.in_use())
