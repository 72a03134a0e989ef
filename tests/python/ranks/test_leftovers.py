"""What readers and owners leave behind: nothing."""

import gc
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader, segments
from tests.python.conftest import until
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, Owner
from tests.python.ranks.readers import descriptors, load, reading_threads


@FEW_SEGMENTS
def test_readers_leave_nothing_behind(owner: Owner, store_directory: Path) -> None:
    owner.put(KEYS[:2], [1000])

    def connect() -> None:
        reader = Reader(store_directory, None)
        assert load(reader, KEYS[:2], [1000]) == [True, True]
        reader.close()

    connect()
    until("the first thread ends", lambda: reading_threads() == [])
    gc.collect()
    before = descriptors()
    for _ in range(200):
        connect()
    until("all threads end", lambda: reading_threads() == [])
    gc.collect()
    assert descriptors() <= before


@FEW_SEGMENTS
def test_owners_that_were_lost_leave_nothing_behind(store_directory: Path, reader: Reader) -> None:
    def lose() -> None:
        owner = Owner(store_directory)
        owner.put(KEYS[:2], [1000])
        until("it is found", lambda: load(reader, KEYS[:2], [1000]) == [True, True])
        owner.server.close()
        assert load(reader, KEYS[:2], [1000]) == [False, False]
        owner.close()

    lose()
    lose()
    gc.collect()
    before = descriptors()
    for _ in range(4):
        lose()
    gc.collect()
    assert descriptors() <= before + 4
    assert len(reader._links) <= 1


def test_the_memory_of_segments_is_registered(owner: Owner) -> None:
    expected = segments.SEGMENTS * segments.SEGMENT_BYTES
    assert owner.store.connector.stats()["registered_bytes"] == expected
