"""What readers and owners leave behind: nothing."""

import gc
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader, segments
from tests.python.conftest import until
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, Owner
from tests.python.ranks.readers import (
    at_the_same_time,
    descriptors,
    load,
    reading_threads,
)


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
def test_threads_of_a_reader_leave_nothing_behind(owner: Owner, reader: Reader) -> None:
    """SGLang starts new threads whenever its cache is flushed."""
    owner.put(KEYS[:2], [1000])

    def read() -> None:
        assert load(reader, KEYS[:2], [1000]) == [True, True]

    with at_the_same_time(read):
        pass
    gc.collect()
    before = descriptors()
    for _ in range(200):
        with at_the_same_time(read):
            pass
    gc.collect()
    until("most threads end", lambda: len(reading_threads()) < 10)
    assert descriptors() < before + 10
    assert load(reader, KEYS[:2], [1000]) == [True, True]


@FEW_SEGMENTS
def test_owners_leave_nothing_behind(store_directory: Path) -> None:
    def live() -> None:
        owner = Owner(store_directory)
        owner.put(KEYS[:2], [1000])
        reader = Reader(store_directory, None)
        assert load(reader, KEYS[:2], [1000]) == [True, True]
        owner.close()
        reader.close()

    live()
    gc.collect()
    until("all threads end", lambda: reading_threads() == [])
    before = descriptors()
    for _ in range(10):
        live()
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
