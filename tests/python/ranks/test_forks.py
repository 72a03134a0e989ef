"""Forks of an owner and its readers have no part in it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, PREFIX, Owner
from tests.python.ranks.readers import bounded, load, sockets

pytestmark = [
    FEW_SEGMENTS,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def test_a_fork_has_no_part_in_it(store_directory: Path, open_reader: Callable[[], Reader]) -> None:
    owner, reader = Owner(store_directory), open_reader()
    owner.put(KEYS[:2], [1000])

    def live() -> None:
        assert load(reader, KEYS[:2], [1000]) == [True, True]
        there, here = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                found = load(reader, KEYS[:2], [1000]) + reader.exists(PREFIX, KEYS[:2], 1)
                os.write(here, b"-+"[any(found) :][:1])
            finally:
                signal.pause()
        try:
            assert os.read(there, 1) == b"-"
            assert load(reader, KEYS[1:2], [1000]) == [True]
            owner.close()
            # The fork lives, and does not hold the connection.
            assert load(reader, KEYS[:2], [1000]) == [False, False]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(there)
            os.close(here)

    bounded(live)


def test_a_fork_has_no_socket_of_it(
    store_directory: Path, open_reader: Callable[[], Reader]
) -> None:
    """One that outlives an owner that is killed would keep its readers waiting."""
    before = sockets()
    owner, reader = Owner(store_directory), open_reader()
    owner.put(KEYS[:1], [1000])
    assert load(reader, KEYS[:1], [1000]) == [True]
    assert sockets() >= before + 3
    child = os.fork()
    if child == 0:
        os._exit(sockets() - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert load(reader, KEYS[:1], [1000]) == [True]
    owner.close()
