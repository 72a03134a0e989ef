"""Requests that nobody should send, and users who should send none."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader
from kvring.ranks.reader import _Link
from tests.python.conftest import (
    CAPACITY_BYTES,
    HANG_DEADLINE_S,
    MIB,
    bare_loop_device,
    run_child,
    until,
)
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, PREFIX, SEGMENT_BYTES, SEGMENTS, Owner
from tests.python.ranks.readers import bounded, load, reading_threads

USER_ID = 54321

pytestmark = FEW_SEGMENTS


@pytest.mark.parametrize(
    "request_line",
    [
        b"no json",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b"5",
        b"null",
        b"{}",
        b'{"unknown": 1}',
        b'{"done": 7}',
        b'{"done": "x"}',
        b'{"load": []}',
        b'{"load": [5, 5, 5]}',
        b'{"load": ["p", ["key-0"], [1000, 1000]]}',
        b'{"load": ["p", ["key-0"], [0]]}',
        b'{"load": ["p", ["key-0"], [-1]]}',
        b'{"load": ["p", ["key-0"], ["x"]]}',
        b'{"load": ["p", ["key-0"], [1.5]]}',
        b'{"load": ["p", ["key-0"], [999999999]]}',
        b'{"load": ["p", ["key-0", "key-1"], [-65536, 65537]]}',
        b'{"load": ["p", ["key-0", "key-1"], [99999999999999999999, 1]]}',
        b'{"load": ["p", [["key-0"]], [1000]]}',
        b'{"load": ["' + b"x" * 5000 + b'", ["key-0"], [1000]]}',
        b'{"exists": ["p", "key-0", "x"]}',
        b'{"exists": 5}',
        b'{"exists": ["p", ["key-0"], 0]}',
        b'{"exists": ["p", ["key-0"], -1]}',
        b'{"count_leading": []}',
        b'{"load": ["p", ["key-0"], [1000]]',
    ],
)
def test_a_wrong_request_harms_nobody_else(
    owner: Owner, reader: Reader, store_directory: Path, request_line: bytes
) -> None:
    owner.put(KEYS[:4], [1000])
    for _ in range(SEGMENTS + 1):
        link = _Link(store_directory, None)
        link._connection.settimeout(HANG_DEADLINE_S)
        link._connection.sendall(request_line + b"\n")
        # An answer, or the end of the connection; what comes too late fails the test.
        with suppress(ConnectionError):
            link._connection.shutdown(socket.SHUT_WR)
            link._line.read()
        link.close()
    assert bounded(lambda: [load(reader, [key], [1000]) for key in KEYS[:4]]) == [[True]] * 4
    until("all are free", lambda: not owner.in_use())
    # What a thread of the owner raises fails this test: pytest looks for it.
    until("its threads end", lambda: len(reading_threads()) <= 1)


def test_a_request_that_cannot_be_written_leaves_no_answer_to_the_next_one(
    owner: Owner, reader: Reader
) -> None:
    lengths = [SEGMENT_BYTES]
    owner.put(KEYS[:6], lengths)
    wrong: list[Any] = [*KEYS[:2], b"no text"]
    # Each key is a piece of its own, and the first ones have been asked for by then.
    with pytest.raises(TypeError):
        load(reader, wrong, lengths)
    for keys in (KEYS[3:6], KEYS[:3]):
        assert waited_for(partial(load, reader, keys, lengths)) == [True] * 3
    until("all are free", lambda: not owner.in_use())


def waited_for(work: Callable[[], list[bool | None]]) -> list[bool | None]:
    """Return what a load finds once the reader has connected again."""
    found: list[bool | None] = []

    def finds() -> bool:
        found[:] = work()
        return False not in found

    until("the reader connects", finds)
    return found


def read_as_another_user(path: str) -> None:
    """Read as a user who may read the device."""
    reader = Reader(Path(path), None)
    reader.exists(PREFIX, KEYS[:2], 1)
    reader.close()
    os.setuid(USER_ID)
    reader = Reader(Path(path), None)
    print(reader.exists(PREFIX, KEYS[:2], 1), load(reader, KEYS[:2], [1000]))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
def test_other_users_read_nothing(tmp_path: Path, store_directory: Path) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        mode = device.path.stat().st_mode
        for path in (device.path, store_directory):
            owner = Owner(path, "all" if path == device.path else CAPACITY_BYTES)
            owner.put(KEYS[:2], [1000])
            reader = Reader(path, None)
            assert load(reader, KEYS[:2], [1000]) == [True, True]
            reader.close()
            # Who may read the device knows its id, and who may pass the directories its socket.
            device.path.chmod(0o666)
            try:
                ended = run_child(read_as_another_user, str(path))
            finally:
                device.path.chmod(mode)
            assert ended.stdout.splitlines()[-1] == "[False, False] [False, False]", ended
            owner.close()
