"""Owners that come and go, and readers that are closed."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.engine_store import EngineStore
from kvring.ranks import Reader, ReadServer
from kvring.ranks.reader import _Link
from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S, until
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, PREFIX, Owner
from tests.python.ranks.readers import at_the_same_time, bounded, load, reading_threads


@FEW_SEGMENTS
def test_before_there_is_an_owner_all_is_a_miss(
    store_directory: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:

    def find_none() -> None:
        # Were each to wait until it may connect again, all would hang.
        for _ in range(50):
            assert load(reader, KEYS[:2], [1000]) == [False, False]
            assert reader.exists(PREFIX, KEYS[:2], 1) == [False, False]
            assert reader.count_leading(PREFIX, KEYS[:2], 1) == 0

    bounded(find_none)
    assert [str(store_directory) in line for line in caplog.messages] == [True]
    owner = Owner(store_directory)
    owner.put(KEYS[:2], [1000])
    until("the owner is found", lambda: load(reader, KEYS[:2], [1000]) == [True, True])

    def lose() -> None:
        assert load(reader, KEYS[:2], [1000]) == [True, True]
        owner.close()
        caplog.clear()
        assert load(reader, KEYS[:2], [1000]) == [False, False]
        assert load(reader, KEYS[:2], [1000]) == [False, False]

    bounded(lose)
    # Once for each owner that is lost.
    assert sum("does not answer" in line for line in caplog.messages) == 1
    owner = Owner(store_directory)
    until("the next one is found", lambda: load(reader, KEYS[:2], [1000]) == [True, True])
    owner.close()


def own(path: str) -> None:
    """Have a store open, and serve readers, until this process is killed."""
    owner = Owner(path)
    owner.put(KEYS[:6], [20_000])
    print("ready", flush=True)
    sys.stdin.readline()
    owner.close()


def test_an_owner_that_is_killed_is_a_miss_and_the_next_one_a_hit(
    store_directory: Path, reader: Reader, start_child: Callable[..., Any]
) -> None:
    child = start_child(own, str(store_directory))

    def lose() -> None:
        assert load(reader, KEYS[:6], [20_000]) == [True] * 6
        child.kill()
        child.wait(HANG_DEADLINE_S)
        assert load(reader, KEYS[:6], [20_000]) == [False] * 6
        assert reader.exists(PREFIX, KEYS[:6], 1) == [False] * 6

    bounded(lose)
    owner = Owner(store_directory)
    until("the next one is found", lambda: load(reader, KEYS[:6], [20_000]) == [True] * 6)
    owner.close()


def test_an_owner_that_is_stopped_is_a_miss_and_its_late_answers_harm_nothing(
    store_directory: Path,
    reader: Reader,
    start_child: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = start_child(own, str(store_directory))
    assert load(reader, KEYS[:3], [20_000]) == [True] * 3
    os.kill(child.pid, signal.SIGSTOP)
    # Its threads stop a moment later.
    os.waitpid(child.pid, os.WUNTRACED)
    # Of the connection that there is, and of any other until the owner goes on.
    for link in reader._links:
        link._connection.settimeout(0.3)
    with monkeypatch.context() as patch:
        patch.setattr("kvring.ranks.segments.ANSWER_DEADLINE_S", 0.3)
        assert load(reader, KEYS[3:6], [20_000]) == [False] * 3
        assert reader.exists(PREFIX, KEYS[:3], 1) == [False] * 3
    os.kill(child.pid, signal.SIGCONT)
    for _ in range(3):
        until("it is found", lambda: load(reader, KEYS[:6], [20_000]) == [True] * 6)
        assert reader.exists(PREFIX, KEYS[4:8], 1) == [True, True, False, False]


@FEW_SEGMENTS
def test_a_reader_that_was_closed_reads_nothing(owner: Owner, reader: Reader) -> None:
    owner.put(KEYS[:2], [1000])
    assert load(reader, KEYS[:2], [1000]) == [True, True]
    reader.close()
    reader.close()
    assert load(reader, KEYS[:2], [1000]) == [False, False]
    assert reader.exists(PREFIX, KEYS[:2], 1) == [False, False]
    assert reader.count_leading(PREFIX, KEYS[:2], 1) == 0
    until("its thread ends", lambda: reading_threads() == [])


@FEW_SEGMENTS
def test_a_reader_that_is_closed_leaves_a_thread_its_descriptor(
    owner: Owner, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait on what has that number next."""
    owner.put(KEYS[:1], [1000])
    waits, is_closed = threading.Event(), threading.Event()
    receive = _Link.receive

    def receive_late(link: Any) -> Any:
        waits.set()
        assert is_closed.wait(HANG_DEADLINE_S)
        return receive(link)

    def read() -> None:
        assert load(reader, KEYS[:1], [1000]) == [False]

    monkeypatch.setattr(_Link, "receive", receive_late)
    with at_the_same_time(read):
        assert waits.wait(HANG_DEADLINE_S)
        (link,) = reader._links
        reader.close()
        number = link._connection.fileno()
        is_closed.set()
    assert number >= 0


@FEW_SEGMENTS
def test_an_owner_that_serves_no_readers_is_a_miss(store_directory: Path, reader: Reader) -> None:
    store = EngineStore("the test", {"path": str(store_directory), "capacity": CAPACITY_BYTES})
    assert load(reader, KEYS[:1], [1000]) == [False]
    server = ReadServer(store)
    owner = object.__new__(Owner)
    owner.store, owner.server = store, server
    owner.put(KEYS[:1], [1000])
    until("it serves", lambda: load(reader, KEYS[:1], [1000]) == [True])
    owner.close()
