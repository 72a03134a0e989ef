"""What readers get: whole parts, misses, and the same read for all."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader
from kvring.ranks.reader import _Link
from tests.python.conftest import BLOCK_BYTES, HANG_DEADLINE_S, until
from tests.python.ranks.owners import (
    FEW_SEGMENTS,
    KEYS,
    PREFIX,
    SEGMENT_BYTES,
    SEGMENTS,
    HeldLoads,
    Memory,
    Owner,
    content_of,
)
from tests.python.ranks.readers import at_the_same_time, load

pytestmark = FEW_SEGMENTS


@pytest.mark.parametrize(
    "lengths",
    [
        (1,),
        (BLOCK_BYTES - 1,),
        (BLOCK_BYTES,),
        (BLOCK_BYTES + 1, 1),
        (3 * BLOCK_BYTES - 5, 700, 2 * BLOCK_BYTES),
        (SEGMENT_BYTES,),
        (SEGMENT_BYTES // 2, SEGMENT_BYTES // 2 - 1),
        (9_999,) * 5,
    ],
    ids=str,
)
def test_parts_of_all_lengths_are_loaded_whole(
    owner: Owner, reader: Reader, lengths: tuple[int, ...]
) -> None:
    owner.put(KEYS[:9], lengths)
    keys = [KEYS[20], *KEYS[:9], KEYS[21]]
    expected = [False, *[True] * 9, False]
    assert load(reader, keys, lengths) == expected
    assert reader.exists(PREFIX, keys, len(lengths)) == expected
    assert reader.count_leading(PREFIX, keys[1:], len(lengths)) == 9
    assert reader.count_leading(PREFIX, keys, len(lengths)) == 0
    # Not what is stored.
    longer = [*lengths[:-1], lengths[-1] + 1]
    assert load(reader, keys, longer) == [False] * len(keys)
    assert load(reader, keys, [*lengths, 10]) == [False] * len(keys)
    assert reader.exists(PREFIX, keys, len(lengths) + 1) == [False] * len(keys)
    assert load(reader, [], lengths) == []
    assert (reader.exists(PREFIX, [], 1), reader.count_leading(PREFIX, [], 1)) == ([], 0)


def test_a_key_that_is_longer_than_a_segment_is_a_miss_and_others_come(
    owner: Owner, reader: Reader
) -> None:
    long, short = [SEGMENT_BYTES + 1], [10_000]
    owner.put(KEYS[:2], long)
    assert load(reader, KEYS[:2], long) == [False, False]
    owner.put(KEYS[2:9], short)
    memory = Memory([*short * 3, *long, *short * 4, *long])
    keys = [*KEYS[2:5], KEYS[0], *KEYS[5:9], KEYS[1]]
    loaded = reader.load(PREFIX, keys, memory.addresses, memory.lengths)
    assert loaded == [True] * 3 + [False] + [True] * 4 + [False]
    assert reader.exists(PREFIX, keys, 1) == [True] * len(keys)
    assert memory.is_intact_around()
    for key, block, ok in zip(keys, memory.blocks, loaded, strict=True):
        assert not ok or block == content_of(key, 0, len(block))


def test_a_key_without_one_of_its_parts_is_a_miss(owner: Owner, reader: Reader) -> None:
    lengths = (5000, 100, 6000)
    owner.put(KEYS[:8], lengths)
    assert load(reader, KEYS[:8], lengths) == [True] * 8
    for part in range(3):
        owner.delete_part(KEYS[part + 1], part)
    expected = [True, False, False, False, True, True, True, True]
    assert reader.exists(PREFIX, KEYS[:8], 3) == expected
    assert reader.count_leading(PREFIX, KEYS[:8], 3) == 1
    assert load(reader, KEYS[:8], lengths) == expected


def test_what_was_loaded_for_one_is_there_for_the_next_until_it_is_forgotten(
    owner: Owner, open_reader: Callable[[], Reader]
) -> None:
    readers = [open_reader() for _ in range(3)]
    lengths = (5000, 100)
    owner.put(KEYS[:4], lengths)
    assert owner.reads() == 0
    for reader in readers:
        assert load(reader, KEYS[:4], lengths) == [True] * 4
    once = owner.reads()
    assert once == 4 * sum(lengths)
    owner.server.forget(KEYS[5:9])
    assert load(readers[0], KEYS[:4], lengths) == [True] * 4
    assert owner.reads() == once
    owner.server.forget(KEYS[3:9])
    for reader in readers:
        assert load(reader, KEYS[:4], lengths) == [True] * 4
    assert owner.reads() == 2 * once
    # What was not all there is looked for anew.
    for times in range(1, 3):
        assert load(readers[0], KEYS[3:5], lengths) == [True, False]
        assert owner.reads() == 2 * once + times * sum(lengths)
    owner.put(KEYS[4:5], lengths)
    assert load(readers[0], KEYS[3:5], lengths) == [True, True]


@pytest.mark.parametrize("stored", [5, 4])
def test_two_that_ask_at_the_same_time_get_the_same_read(
    owner: Owner,
    open_reader: Callable[[], Reader],
    held_loads: HeldLoads,
    monkeypatch: pytest.MonkeyPatch,
    stored: int,
) -> None:
    owner.put(KEYS[:stored], [9000])
    held_loads.hold(KEYS[0])
    readers = [open_reader() for _ in range(4)]
    together = threading.Barrier(len(readers))
    copy = _Link.copy

    def copy_together(link: Any, *request: Any) -> None:
        together.wait(HANG_DEADLINE_S)
        copy(link, *request)

    monkeypatch.setattr(_Link, "copy", copy_together)

    def read(reader: Reader) -> Callable[[], None]:
        def work() -> None:
            loaded = load(reader, KEYS[:5], [9000])
            assert loaded == [True] * stored + [False] * (5 - stored)

        return work

    with at_the_same_time(*map(read, readers)):
        until("all ask", lambda: owner.in_use() == [4])
        held_loads.let_end()
    assert owner.reads() == stored * 9000
    # One of them waited for the drive, and told the others.
    assert held_loads.awaited == [KEYS[0]]
    until("all are free", lambda: owner.in_use() == [])


def test_a_segment_stays_as_it_is_until_its_readers_have_copied(
    owner: Owner, open_reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS[: SEGMENTS + 1]
    owner.put(keys, [SEGMENT_BYTES])
    copying: list[Any] = []
    may_copy = threading.Event()
    copy = _Link.copy

    def copy_slowly(link: Any, *request: Any) -> None:
        if len(copying) < SEGMENTS:
            copying.append(link)
            assert may_copy.wait(HANG_DEADLINE_S)
        copy(link, *request)
        # One that was given a segment of theirs has read other bytes into it.
        may_copy.set()

    monkeypatch.setattr(_Link, "copy", copy_slowly)
    wait = owner.server._changed.wait

    def wait_for_a_segment(timeout_s: float | None = None) -> bool:
        may_copy.set()
        return wait(timeout_s)

    readers = [open_reader() for _ in keys]

    def read(number: int) -> Callable[[], None]:
        def work() -> None:
            assert load(readers[number], [keys[number]], [SEGMENT_BYTES]) == [True]

        return work

    with at_the_same_time(*map(read, range(SEGMENTS))):
        until("all copy", lambda: len(copying) == SEGMENTS)
        monkeypatch.setattr(owner.server._changed, "wait", wait_for_a_segment)
        assert load(readers[-1], keys[-1:], [SEGMENT_BYTES]) == [True]


def test_a_reader_that_was_hung_up_on_while_it_copied_has_a_miss(
    owner: Owner, open_reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.put(KEYS[: SEGMENTS + 1], [SEGMENT_BYTES])
    reader, other = open_reader(), open_reader()
    copy = _Link.copy

    def copy_too_late(link: Any, *request: Any) -> None:
        monkeypatch.setattr(_Link, "copy", copy)
        for connection in list(owner.server._connections):
            connection.shutdown(socket.SHUT_RDWR)
        until("it is free", lambda: not owner.in_use())
        # Other bytes are where it copies from.
        for key in KEYS[1 : SEGMENTS + 1]:
            assert load(other, [key], [SEGMENT_BYTES]) == [True]
        copy(link, *request)

    monkeypatch.setattr(_Link, "copy", copy_too_late)
    assert load(reader, KEYS[:1], [SEGMENT_BYTES]) == [False]
    until("it is back", lambda: load(reader, KEYS[:1], [SEGMENT_BYTES]) == [True])


def test_a_key_that_is_named_twice_comes_twice(owner: Owner, open_reader: Any) -> None:
    owner.put(KEYS[:2], [SEGMENT_BYTES])
    reader = open_reader()
    # Two pieces with the same content, one after the other.
    for _ in range(2 * SEGMENTS):
        assert load(reader, [KEYS[0]] * 3, [SEGMENT_BYTES]) == [True] * 3
        assert load(reader, [KEYS[1], *KEYS[:2]], [SEGMENT_BYTES]) == [True] * 3
