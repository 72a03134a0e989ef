"""Reads of a store by other processes: pieces, segments, many readers, and owners that go away."""

import gc
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

import numpy as np

from kvring import shared_reads
from kvring.engine_store import EngineStore
from kvring.shared_reads import Reader, ReadServer
from tests.python.conftest import (
    BLOCK_BYTES,
    CAPACITY_BYTES,
    HANG_DEADLINE_S,
    KIB,
    MIB,
    bare_loop_device,
    make_memory,
    run_child,
)

PREFIX = "test/model@00000000"
# Most tests have few and short segments, so that they run out.
SEGMENTS = 3
SEGMENT_BYTES = 64 * KIB
# Of what needs no time at all.
SOON_S = 3.0
USER_ID = 54321

KEYS = [f"key-{number}" for number in range(24)]

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def _few_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "_SEGMENTS", SEGMENTS)
    monkeypatch.setattr(shared_reads, "_SEGMENT_BYTES", SEGMENT_BYTES)


FEW_SEGMENTS = pytest.mark.usefixtures("_few_segments")


class Owner:
    """An open store that serves readers."""

    def __init__(self, path: Path | str, capacity: int | str = CAPACITY_BYTES) -> None:
        """Open it."""
        self.store = EngineStore("the test", {"path": str(path), "capacity": capacity})
        self.server = ReadServer(self.store)

    def put(self, keys: Sequence[str], lengths: Sequence[int], version: int = 0) -> None:
        """Store each key in parts of these lengths, and have readers forget what was there."""
        memory = Memory(len(keys) * list(lengths))
        for (key, part), block in zip(_parts(keys, len(lengths)), memory.blocks, strict=True):
            block[:] = content_of(key, part, len(block), version)
        task = self.store.tasks.store(PREFIX, list(keys), memory.addresses, memory.lengths)
        assert self.store.tasks.wait(task)[1:3] == ([True] * len(keys), "")
        self.server.forget(keys)

    def delete_part(self, key: str, part: int) -> None:
        """Remove one of the chunks of a key."""
        chunk = f"{PREFIX}@{part:x}@{key}"
        task = self.store.connector.submit_batch_delete([chunk])
        assert self.store.tasks.wait(task)[1] == [True]

    def reads(self) -> int:
        """Return how many bytes were read from the disk so far."""
        count: int = self.store.connector.stats()["read_bytes"]
        return count

    def close(self) -> None:
        """Close it."""
        self.server.close()
        self.store.close()


class Memory:
    """Memory of these lengths, with some bytes around each block that nobody may write to."""

    FILL = 0xEE
    AROUND = 64

    def __init__(self, lengths: Sequence[int]) -> None:
        """Fill it."""
        self.lengths = list(lengths)
        self._all = make_memory(sum(lengths) + self.AROUND * (len(self.lengths) + 1))
        self._all[:] = bytes([self.FILL]) * len(self._all)
        base: int = np.frombuffer(self._all, dtype=np.uint8).ctypes.data
        self.blocks: list[memoryview] = []
        self.addresses: list[int] = []
        offset = self.AROUND
        for length in self.lengths:
            self.blocks.append(self._all[offset : offset + length])
            self.addresses.append(base + offset)
            offset += length + self.AROUND

    def is_intact_around(self) -> bool:
        """Say whether nothing but the blocks was written to."""
        outside = bytearray(self._all)
        offset = self.AROUND
        for length in self.lengths:
            outside[offset : offset + length] = bytes([self.FILL]) * length
            offset += length + self.AROUND
        return bytes(outside) == bytes([self.FILL]) * len(outside)


def content_of(key: str, part: int, length_bytes: int, version: int = 0) -> bytes:
    return random.Random(f"{key}/{part}/{version}").randbytes(length_bytes)


def _parts(keys: Sequence[str], parts: int) -> list[tuple[str, int]]:
    return [(key, part) for key in keys for part in range(parts)]


def load(
    reader: Reader, keys: Sequence[str], lengths: Sequence[int], version: int = 0
) -> list[bool | None]:
    """Load keys with parts of these lengths; None is one that is said to be there, and is not."""
    memory = Memory(len(keys) * list(lengths))
    loaded = reader.load(PREFIX, list(keys), memory.addresses, memory.lengths)
    assert len(loaded) == len(keys)
    assert memory.is_intact_around()
    parts = len(lengths)
    answers: list[bool | None] = []
    for number, (key, ok) in enumerate(zip(keys, loaded, strict=True)):
        blocks = memory.blocks[number * parts : (number + 1) * parts]
        is_right = all(
            block == content_of(key, part, len(block), version) for part, block in enumerate(blocks)
        )
        answers.append((is_right or None) if ok else False)
    return answers


@pytest.fixture
def owner(store_directory: Path) -> Iterator[Owner]:
    """An owner of an empty store."""
    owner = Owner(store_directory)
    yield owner
    owner.close()


@pytest.fixture
def open_reader(store_directory: Path) -> Iterator[Callable[[], Reader]]:
    """Make readers of the test's store."""
    with ExitStack() as stack:

        def build() -> Reader:
            reader = Reader(store_directory, None)
            stack.callback(reader.close)
            return reader

        yield build


@pytest.fixture
def reader(open_reader: Callable[[], Reader]) -> Reader:
    """A reader of the test's store."""
    return open_reader()


@contextmanager
def at_the_same_time(*works: Callable[[], None]) -> Iterator[None]:
    """Run all in threads of their own while the block runs, and wait; raise what one raises."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(HANG_DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    if failures:
        raise failures[0]


def soon(what: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} does not come"
        time.sleep(0.01)


# --- pieces ---


def blocks_of(lengths: Sequence[int]) -> int:
    return sum(-(-length // BLOCK_BYTES) * BLOCK_BYTES for length in lengths)


@FEW_SEGMENTS
def test_pieces_are_as_long_as_can_be_and_fit_into_segments() -> None:
    choose = random.Random(1)
    alone = 0
    for _ in range(2000):
        parts, count = choose.randint(1, 4), choose.randint(0, 12)
        most = choose.choice([100, 9000, SEGMENT_BYTES // parts, SEGMENT_BYTES])
        lengths = [choose.randint(1, most) for _ in range(parts * count)]
        if choose.random() < 0.3:
            lengths = [choose.choice([BLOCK_BYTES, SEGMENT_BYTES // parts])] * len(lengths)
        own = [blocks_of(lengths[key * parts : (key + 1) * parts]) for key in range(count)]
        pieces = list(shared_reads._pieces(lengths, parts))
        keys = [key for first, end in pieces for key in range(first, end)]
        # Each that fits once, in order, and no other.
        assert keys == [key for key in range(count) if own[key] <= SEGMENT_BYTES]
        for first, end in pieces:
            span = lengths[first * parts : end * parts]
            assert shared_reads._offsets(span)[-1] + span[-1] <= SEGMENT_BYTES
            assert end == count or sum(own[first : end + 1]) > SEGMENT_BYTES
        alone += len(keys) < count
    assert alone > 100


def test_parts_lie_in_blocks_of_their_own() -> None:
    choose = random.Random(2)
    for _ in range(200):
        lengths = [choose.randint(1, 20_000) for _ in range(choose.randint(1, 20))]
        offsets = shared_reads._offsets(lengths)
        assert offsets[0] == 0
        for number, offset in enumerate(offsets[1:], 1):
            end = offsets[number - 1] + lengths[number - 1]
            assert offset % BLOCK_BYTES == 0
            assert end <= offset < end + BLOCK_BYTES
    assert shared_reads._offsets([]) == []


# --- what readers get ---


@FEW_SEGMENTS
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


@FEW_SEGMENTS
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


@FEW_SEGMENTS
def test_a_key_without_one_of_its_parts_is_a_miss(owner: Owner, reader: Reader) -> None:
    lengths = (5000, 100, 6000)
    owner.put(KEYS[:8], lengths)
    assert load(reader, KEYS[:8], lengths) == [True] * 8
    for part in range(3):
        owner.delete_part(KEYS[part + 1], part)
    owner.server.forget_all()
    expected = [True, False, False, False, True, True, True, True]
    assert reader.exists(PREFIX, KEYS[:8], 3) == expected
    assert reader.count_leading(PREFIX, KEYS[:8], 3) == 1
    assert load(reader, KEYS[:8], lengths) == expected


@FEW_SEGMENTS
def test_a_key_that_is_named_twice_comes_twice(owner: Owner, open_reader: Any) -> None:
    owner.put(KEYS[:2], [SEGMENT_BYTES])
    reader = open_reader()
    # Two pieces with the same content, one after the other.
    for _ in range(2 * SEGMENTS):
        assert load(reader, [KEYS[0]] * 3, [SEGMENT_BYTES]) == [True] * 3
        assert load(reader, [KEYS[1], *KEYS[:2]], [SEGMENT_BYTES]) == [True] * 3


@FEW_SEGMENTS
def test_many_keys_are_asked_for_at_once(owner: Owner, reader: Reader) -> None:
    keys = [f"{number:064x}" for number in range(6000)]
    owner.put(keys[:50], [1])
    assert reader.exists(PREFIX, keys, 1) == [True] * 50 + [False] * 5950
    assert reader.count_leading(PREFIX, keys, 3) == 0
    assert load(reader, keys[:500], [1]) == [True] * 50 + [False] * 450


@FEW_SEGMENTS
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
    owner.server.forget_all()
    assert load(readers[1], KEYS[:4], lengths) == [True] * 4
    assert owner.reads() == 3 * once
    # What was not all there is looked for anew.
    for times in range(1, 3):
        assert load(readers[0], KEYS[3:5], lengths) == [True, False]
        assert owner.reads() == 3 * once + times * sum(lengths)
    owner.put(KEYS[4:5], lengths)
    assert load(readers[0], KEYS[3:5], lengths) == [True, True]


@FEW_SEGMENTS
def test_what_was_loaded_last_stays_longest(
    owner: Owner, open_reader: Callable[[], Reader]
) -> None:
    reader = open_reader()
    owner.put(KEYS[:9], [1000])
    for key in KEYS[: SEGMENTS + 1]:
        load(reader, [key], [1000])
    before = owner.reads()
    for key in KEYS[2 : SEGMENTS + 1]:
        assert load(reader, [key], [1000]) == [True]
    assert owner.reads() == before
    assert load(reader, [KEYS[0]], [1000]) == [True]
    assert owner.reads() == before + 1000


@FEW_SEGMENTS
def test_keys_that_are_stored_anew_are_the_new_ones(
    owner: Owner, open_reader: Callable[[], Reader]
) -> None:
    readers = [open_reader() for _ in range(2)]
    for version in range(6):
        owner.put(KEYS[:6], [7000], version)
        for reader in readers:
            assert load(reader, KEYS[:6], [7000], version) == [True] * 6


@FEW_SEGMENTS
def test_two_that_ask_at_the_same_time_get_the_same_read(
    owner: Owner, open_reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.put(KEYS[:5], [9000])
    going, load_segment = threading.Event(), owner.server._load

    def load_slowly(*request: Any) -> list[bool]:
        assert going.wait(HANG_DEADLINE_S)
        return load_segment(*request)

    monkeypatch.setattr(owner.server, "_load", load_slowly)
    readers = [open_reader() for _ in range(4)]

    def read(reader: Reader) -> Callable[[], None]:
        def work() -> None:
            assert load(reader, KEYS[:5], [9000]) == [True] * 5

        return work

    with at_the_same_time(*map(read, readers)):
        soon("all ask", lambda: sum(one.readers for one in owner.server._segments) == 4)
        going.set()
    assert owner.reads() == 5 * 9000
    assert sum(one.readers for one in owner.server._segments) == 0


@FEW_SEGMENTS
def test_a_segment_stays_as_it_is_until_its_readers_have_copied(
    owner: Owner, open_reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS[: SEGMENTS + 1]
    owner.put(keys, [SEGMENT_BYTES])
    copying = threading.Barrier(SEGMENTS)
    copy = shared_reads._Link.copy
    are_slow = True

    def copy_slowly(link: Any, *request: Any) -> None:
        if are_slow:
            copying.wait(HANG_DEADLINE_S)
            # The one that waits for a segment would have taken it by now.
            time.sleep(0.3)
        copy(link, *request)

    monkeypatch.setattr(shared_reads._Link, "copy", copy_slowly)
    readers = [open_reader() for _ in keys]

    def read(number: int) -> Callable[[], None]:
        def work() -> None:
            assert load(readers[number], [keys[number]], [SEGMENT_BYTES]) == [True]

        return work

    with at_the_same_time(*map(read, range(SEGMENTS))):
        soon("all hold", lambda: all(one.readers for one in owner.server._segments))
        are_slow = False
        assert load(readers[-1], keys[-1:], [SEGMENT_BYTES]) == [True]


@FEW_SEGMENTS
def test_what_could_not_be_copied_is_a_miss(
    owner: Owner, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.put(KEYS[:12], [9000])

    def fail(*_: object) -> None:
        raise ConnectionError("it was hung up")

    with monkeypatch.context() as patch:
        patch.setattr(shared_reads._Link, "copy", fail)
        assert load(reader, KEYS[:12], [9000]) == [False] * 12
    soon("the reader is back", lambda: load(reader, KEYS[:12], [9000]) == [True] * 12)


@FEW_SEGMENTS
def test_a_reader_that_was_hung_up_on_while_it_copied_has_a_miss(
    owner: Owner, open_reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.put(KEYS[: SEGMENTS + 1], [SEGMENT_BYTES])
    reader, other = open_reader(), open_reader()
    copy = shared_reads._Link.copy

    def copy_too_late(link: Any, *request: Any) -> None:
        monkeypatch.setattr(shared_reads._Link, "copy", copy)
        for connection in list(owner.server._connections):
            connection.shutdown(socket.SHUT_RDWR)
        soon("it is free", lambda: not any(one.readers for one in owner.server._segments))
        # Other bytes are where it copies from.
        for key in KEYS[1 : SEGMENTS + 1]:
            assert load(other, [key], [SEGMENT_BYTES]) == [True]
        copy(link, *request)

    monkeypatch.setattr(shared_reads._Link, "copy", copy_too_late)
    assert load(reader, KEYS[:1], [SEGMENT_BYTES]) == [False]
    soon("it is back", lambda: load(reader, KEYS[:1], [SEGMENT_BYTES]) == [True])


# --- many readers ---


@FEW_SEGMENTS
def test_more_readers_than_segments_all_get_theirs(
    owner: Owner, open_reader: Callable[[], Reader]
) -> None:
    owner.put(KEYS, [SEGMENT_BYTES])
    readers = [open_reader() for _ in range(4 * SEGMENTS)]

    def read(number: int) -> Callable[[], None]:
        choose = random.Random(number)

        def work() -> None:
            for _ in range(15):
                key = choose.choice(KEYS)
                assert load(readers[number], [key], [SEGMENT_BYTES]) == [True]

        return work

    with at_the_same_time(*map(read, range(len(readers)))):
        pass


@FEW_SEGMENTS
def test_more_readers_than_segments_with_several_pieces_each_get_all(
    owner: Owner, open_reader: Callable[[], Reader], monkeypatch: pytest.MonkeyPatch
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

    started_s = time.monotonic()
    with at_the_same_time(*map(read, range(len(readers)))):
        pass
    assert time.monotonic() - started_s < SOON_S


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
    monkeypatch.setattr(shared_reads, "_SEGMENT_DEADLINE_S", 0.2)
    owner.put(KEYS[: SEGMENTS + 1], [1000])
    reader = open_reader()
    with holding(store_directory, KEYS[:SEGMENTS], [1000]):
        started_s = time.monotonic()
        assert load(reader, KEYS[SEGMENTS : SEGMENTS + 1], [1000]) == [False]
        # What they hold is there for all.
        assert load(reader, KEYS[:1], [1000]) == [True]
        assert reader.exists(PREFIX, KEYS[: SEGMENTS + 1], 1) == [True] * (SEGMENTS + 1)
        assert time.monotonic() - started_s < SOON_S
    assert load(reader, KEYS[SEGMENTS : SEGMENTS + 1], [1000]) == [True]


@contextmanager
def holding(path: Path, keys: Sequence[str], lengths: Sequence[int]) -> Iterator[None]:
    """Have a segment for each key while the block runs, as a reader has before it copies."""
    links = [shared_reads._Link(path, None) for _ in keys]
    try:
        for link, key in zip(links, keys, strict=True):
            link.send({"load": [PREFIX, [key], list(lengths)]})
            assert link.receive()[0] is not None
        yield
    finally:
        for link in links:
            link.close()


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
    started_s = time.monotonic()
    assert load(reader, KEYS[8:9], [1000]) == [True]
    assert time.monotonic() - started_s < SOON_S
    soon("all are free", lambda: not any(one.readers for one in owner.server._segments))


@FEW_SEGMENTS
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
        link = shared_reads._Link(store_directory, None)
        link._connection.settimeout(SOON_S)
        link._connection.sendall(request_line + b"\n")
        # An answer, or the end of the connection.
        with suppress(OSError):
            link._connection.shutdown(socket.SHUT_WR)
            link._line.read()
        link.close()
    started_s = time.monotonic()
    for key in KEYS[:4]:
        assert load(reader, [key], [1000]) == [True]
    assert time.monotonic() - started_s < SOON_S
    soon("all are free", lambda: not any(one.readers for one in owner.server._segments))
    # What a thread of the owner raises fails this test: pytest looks for it.
    soon("its threads end", lambda: len(reading_threads()) <= 1)


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvring-reads"]


# --- owners that come and go ---


@FEW_SEGMENTS
def test_before_there_is_an_owner_all_is_a_miss(
    store_directory: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    started_s = time.monotonic()
    for _ in range(50):
        assert load(reader, KEYS[:2], [1000]) == [False, False]
        assert reader.exists(PREFIX, KEYS[:2], 1) == [False, False]
        assert reader.count_leading(PREFIX, KEYS[:2], 1) == 0
    assert time.monotonic() - started_s < SOON_S
    assert [str(store_directory) in line for line in caplog.messages] == [True]
    owner = Owner(store_directory)
    owner.put(KEYS[:2], [1000])
    soon("the owner is found", lambda: load(reader, KEYS[:2], [1000]) == [True, True])
    owner.close()
    caplog.clear()
    assert load(reader, KEYS[:2], [1000]) == [False, False]
    assert load(reader, KEYS[:2], [1000]) == [False, False]
    # Once for each owner that is lost.
    assert sum("does not answer" in line for line in caplog.messages) == 1
    owner = Owner(store_directory)
    soon("the next one is found", lambda: load(reader, KEYS[:2], [1000]) == [True, True])
    owner.close()


@FEW_SEGMENTS
def test_an_owner_that_closes_in_the_midst_of_loads(
    store_directory: Path, open_reader: Callable[[], Reader]
) -> None:
    choose = random.Random(5)
    readers = [open_reader() for _ in range(2 * SEGMENTS)]
    answers: set[bool | None] = set()
    done = threading.Event()

    def read(reader: Reader) -> Callable[[], None]:
        def work() -> None:
            while not done.is_set():
                answers.update(load(reader, KEYS[:6], [20_000]))

        return work

    with at_the_same_time(*map(read, readers)):
        try:
            for _ in range(8):
                owner = Owner(store_directory)
                owner.put(KEYS[:6], [20_000])
                answers.clear()
                soon("they load", lambda: True in answers)
                time.sleep(choose.uniform(0, 0.05))
                started_s = time.monotonic()
                owner.close()
                assert time.monotonic() - started_s < SOON_S
                assert None not in answers, "wrong bytes"
        finally:
            done.set()
    assert answers <= {True, False}


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
    assert load(reader, KEYS[:6], [20_000]) == [True] * 6
    child.kill()
    child.wait(HANG_DEADLINE_S)
    started_s = time.monotonic()
    assert load(reader, KEYS[:6], [20_000]) == [False] * 6
    assert reader.exists(PREFIX, KEYS[:6], 1) == [False] * 6
    assert time.monotonic() - started_s < SOON_S
    owner = Owner(store_directory)
    soon("the next one is found", lambda: load(reader, KEYS[:6], [20_000]) == [True] * 6)
    owner.close()


def test_an_owner_that_is_stopped_is_a_miss_and_its_late_answers_harm_nothing(
    store_directory: Path,
    reader: Reader,
    start_child: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = start_child(own, str(store_directory))
    monkeypatch.setattr(shared_reads, "_ANSWER_DEADLINE_S", 0.3)
    assert load(reader, KEYS[:3], [20_000]) == [True] * 3
    os.kill(child.pid, signal.SIGSTOP)
    started_s = time.monotonic()
    assert load(reader, KEYS[3:6], [20_000]) == [False] * 3
    assert reader.exists(PREFIX, KEYS[:3], 1) == [False] * 3
    assert time.monotonic() - started_s < SOON_S
    os.kill(child.pid, signal.SIGCONT)
    for _ in range(3):
        soon("it is found", lambda: load(reader, KEYS[:6], [20_000]) == [True] * 6)
        assert reader.exists(PREFIX, KEYS[4:8], 1) == [True, True, False, False]


@FEW_SEGMENTS
def test_an_owner_that_serves_no_readers_is_a_miss(store_directory: Path, reader: Reader) -> None:
    store = EngineStore("the test", {"path": str(store_directory), "capacity": CAPACITY_BYTES})
    assert load(reader, KEYS[:1], [1000]) == [False]
    server = ReadServer(store)
    owner = object.__new__(Owner)
    owner.store, owner.server = store, server
    owner.put(KEYS[:1], [1000])
    soon("it serves", lambda: load(reader, KEYS[:1], [1000]) == [True])
    owner.close()


@FEW_SEGMENTS
def test_a_reader_that_was_closed_reads_nothing(owner: Owner, reader: Reader) -> None:
    owner.put(KEYS[:2], [1000])
    assert load(reader, KEYS[:2], [1000]) == [True, True]
    reader.close()
    reader.close()
    assert load(reader, KEYS[:2], [1000]) == [False, False]
    assert reader.exists(PREFIX, KEYS[:2], 1) == [False, False]
    assert reader.count_leading(PREFIX, KEYS[:2], 1) == 0
    soon("its thread ends", lambda: reading_threads() == [])


@FEW_SEGMENTS
def test_a_reader_that_is_closed_in_the_midst_of_loads(
    owner: Owner, open_reader: Callable[[], Reader]
) -> None:
    owner.put(KEYS[:6], [20_000])
    for _ in range(10):
        reader = open_reader()

        end_s = time.monotonic() + SOON_S

        def read(reader: Reader = reader, end_s: float = end_s) -> None:
            found: list[bool | None] = [True]
            while all(found):
                assert time.monotonic() < end_s, "it reads on"
                found = load(reader, KEYS[:6], [20_000])
                assert None not in found, "wrong bytes"

        with at_the_same_time(read, read, read):
            time.sleep(0.02)
            reader.close()
    soon("all are free", lambda: not any(one.readers for one in owner.server._segments))
    soon("all threads end", lambda: reading_threads() == [])


@FEW_SEGMENTS
def test_a_fork_has_no_part_in_it(store_directory: Path, open_reader: Callable[[], Reader]) -> None:
    owner, reader = Owner(store_directory), open_reader()
    owner.put(KEYS[:2], [1000])
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
        started_s = time.monotonic()
        assert load(reader, KEYS[:2], [1000]) == [False, False]
        assert time.monotonic() - started_s < SOON_S
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(there)
        os.close(here)


def sockets() -> int:
    """Return how many sockets this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(descriptor.readlink().name)
    return sum(name.startswith("socket:") for name in names)


@FEW_SEGMENTS
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
@FEW_SEGMENTS
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


# --- what is left behind ---


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@FEW_SEGMENTS
def test_readers_leave_nothing_behind(owner: Owner, store_directory: Path) -> None:
    owner.put(KEYS[:2], [1000])

    def connect() -> None:
        reader = Reader(store_directory, None)
        assert load(reader, KEYS[:2], [1000]) == [True, True]
        reader.close()

    connect()
    soon("the first thread ends", lambda: reading_threads() == [])
    gc.collect()
    before = descriptors()
    for _ in range(200):
        connect()
    soon("all threads end", lambda: reading_threads() == [])
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
    soon("most threads end", lambda: len(reading_threads()) < 10)
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
    soon("all threads end", lambda: reading_threads() == [])
    before = descriptors()
    for _ in range(10):
        live()
    soon("all threads end", lambda: reading_threads() == [])
    gc.collect()
    assert descriptors() <= before


@FEW_SEGMENTS
def test_owners_that_were_lost_leave_nothing_behind(store_directory: Path, reader: Reader) -> None:
    def lose() -> None:
        owner = Owner(store_directory)
        owner.put(KEYS[:2], [1000])
        soon("it is found", lambda: load(reader, KEYS[:2], [1000]) == [True, True])
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
    expected = shared_reads._SEGMENTS * shared_reads._SEGMENT_BYTES
    assert owner.store.connector.stats()["registered_bytes"] == expected
