"""Pieces that a reader asks for before it has copied those before them."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader
from kvring.ranks.reader import _Link
from tests.python.conftest import until
from tests.python.ranks.owners import (
    FEW_SEGMENTS,
    KEYS,
    SEGMENT_BYTES,
    SEGMENTS,
    HeldLoads,
    Owner,
)
from tests.python.ranks.readers import (
    at_the_same_time,
    bounded,
    holding,
    load,
    load_request,
    reading_threads,
    send_at_once,
)

pytestmark = FEW_SEGMENTS


def test_the_next_pieces_are_begun_before_one_is_given_back(
    owner: Owner, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS[: 2 * SEGMENTS]
    owner.put(keys, [SEGMENT_BYTES])
    copy = _Link.copy
    copied = 0

    def copy_once_the_next_is_begun(link: Any, *request: Any) -> None:
        nonlocal copied
        copied += 1
        next_keys = set(keys[copied : copied + 1])
        until("the next load", lambda: next_keys <= owner.begun())
        copy(link, *request)

    monkeypatch.setattr(_Link, "copy", copy_once_the_next_is_begun)
    assert bounded(lambda: load(reader, keys, [SEGMENT_BYTES])) == [True] * len(keys)
    assert copied == len(keys)


def test_the_next_piece_is_begun_before_one_is_answered(
    owner: Owner, store_directory: Path, held_loads: HeldLoads
) -> None:
    owner.put(KEYS[:2], [SEGMENT_BYTES])
    held_loads.hold(*KEYS[:2])
    link = _Link(store_directory, None)
    send_at_once(link, *(load_request([key], [SEGMENT_BYTES]) for key in KEYS[:2]))
    until("both loads", lambda: owner.begun() == set(KEYS[:2]))
    until("the wait for the first", lambda: held_loads.awaited == KEYS[:1])
    # Answers come in the order of the requests.
    held_loads.let_end(KEYS[1])
    held_loads.let_end(KEYS[0])
    answers = [link.receive() for _ in range(2)]
    assert [results for _, results in answers] == [[True], [True]]
    assert held_loads.awaited == KEYS[:2]
    contents = {one.number: one.content for one in owner.server._segments}
    for (number, _), key in zip(answers, KEYS, strict=False):
        content = contents[number]
        assert content is not None
        assert content[1] == (key,)
    link.close()


def test_a_reader_with_one_segment_left_gets_all_its_pieces(
    owner: Owner,
    open_reader: Callable[[], Reader],
    store_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is refused, as others hold all segments, is asked for again."""
    others, keys = KEYS[: SEGMENTS - 1], KEYS[SEGMENTS : 4 * SEGMENTS]
    owner.put(KEYS, [SEGMENT_BYTES])
    answers: list[Any] = []
    receive = _Link.receive

    def receive_noted(link: Any) -> Any:
        answers.append(receive(link))
        return answers[-1]

    def read(asked: list[str]) -> list[bool | None]:
        return bounded(lambda: load(open_reader(), asked, [SEGMENT_BYTES]))

    # In their order, in another one, and with some that are not stored.
    for asked in (keys, keys[::-1], [*keys[:3], "missing", *keys[3:], "missing-too"]):
        with holding(store_directory, others, [SEGMENT_BYTES]), monkeypatch.context() as patch:
            answers.clear()
            patch.setattr(_Link, "receive", receive_noted)
            assert read(asked) == [key in keys for key in asked]
            until("one is free", lambda: owner.in_use() == [1] * len(others))
        # It was refused some.
        assert [None, []] in answers
    until("all are free", lambda: owner.in_use() == [])


def test_pieces_that_come_in_another_order_are_in_their_places(
    owner: Owner, reader: Reader, store_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is refused, and the third one is not: a segment is free by then."""
    owner.put(KEYS, [SEGMENT_BYTES])
    others, keys = KEYS[: SEGMENTS - 1], [KEYS[8], "missing", KEYS[9]]
    begun: list[tuple[str, bool]] = []
    begin, receive = owner.server._begin, _Link.receive

    def begin_noted(content: Any, *, waits: bool) -> Any:
        segment = begin(content, waits=waits)
        begun.append((content[1][0], segment is not None))
        return segment

    def receive_late(link: Any) -> Any:
        monkeypatch.setattr(_Link, "receive", receive)
        answer = receive(link)
        until("the second request", lambda: len(begun) == 2)
        one_more.close()
        until("the free segment", lambda: len(owner.in_use()) < SEGMENTS)
        return answer

    with holding(store_directory, others[1:], [SEGMENT_BYTES]), ExitStack() as one_more:
        one_more.enter_context(holding(store_directory, others[:1], [SEGMENT_BYTES]))
        monkeypatch.setattr(owner.server, "_begin", begin_noted)
        monkeypatch.setattr(_Link, "receive", receive_late)
        assert bounded(lambda: load(reader, keys, [SEGMENT_BYTES])) == [True, False, True]
    expected = [(keys[0], True), (keys[1], False), (keys[2], True), (keys[1], True)]
    assert begun == expected


def test_who_hangs_up_while_loads_go_on_leaves_their_segments_free(
    owner: Owner, reader: Reader, store_directory: Path, held_loads: HeldLoads
) -> None:
    owner.put(KEYS[:9], [SEGMENT_BYTES])
    held_loads.hold(*KEYS[:2])
    link = _Link(store_directory, None)
    send_at_once(link, *(load_request([key], [SEGMENT_BYTES]) for key in KEYS[:2]))
    until("both loads", lambda: owner.in_use() == [1, 1])
    until("the wait for the first", lambda: held_loads.awaited == KEYS[:1])
    link.close()
    held_loads.let_end(KEYS[0])
    # It is answered in vain. The drive still writes into the second one.
    until("the wait for the second", lambda: held_loads.awaited == KEYS[:2])
    assert KEYS[1] in owner.begun()
    # One piece after the other, as segments are free for them.
    assert bounded(lambda: load(reader, KEYS[2:9], [SEGMENT_BYTES])) == [True] * 7
    assert KEYS[1] in owner.begun()
    held_loads.let_end(KEYS[1])
    until("all are free", lambda: owner.in_use() == [])
    before = owner.reads()
    # It was loaded, for whoever comes.
    assert load(reader, KEYS[1:2], [SEGMENT_BYTES]) == [True]
    assert owner.reads() == before
    with holding(store_directory, KEYS[3 : 3 + SEGMENTS], [SEGMENT_BYTES]):
        assert owner.in_use() == [1] * SEGMENTS
    reader.close()
    until("its threads end", lambda: reading_threads() == [])


def test_what_one_began_who_is_gone_is_answered_to_another(
    owner: Owner, open_reader: Callable[[], Reader], store_directory: Path, held_loads: HeldLoads
) -> None:
    """It is the other who waits for the drive, as the first one's thread is not there yet."""
    owner.put(KEYS[:2], [9000])
    held_loads.hold(KEYS[0])
    gone = _Link(store_directory, None)
    send_at_once(gone, *(load_request([key], [9000]) for key in KEYS[:2]))
    until("both loads", lambda: owner.in_use() == [1, 1])
    until("the wait for the first", lambda: held_loads.awaited == KEYS[:1])
    gone.close()
    assert bounded(lambda: load(open_reader(), KEYS[1:2], [9000])) == [True]
    assert held_loads.awaited == KEYS[:2]
    held_loads.let_end()
    until("all are free", lambda: owner.in_use() == [])
    assert owner.reads() == 2 * 9000
    assert held_loads.awaited == KEYS[:2]


def test_what_is_awaited_for_one_who_is_gone_is_answered_to_another(
    owner: Owner, open_reader: Callable[[], Reader], store_directory: Path, held_loads: HeldLoads
) -> None:
    """The thread of the first one waits for the drive, and tells the others' before it ends."""
    owner.put(KEYS[:2], [9000])
    held_loads.hold(*KEYS[:2])
    gone = _Link(store_directory, None)
    send_at_once(gone, *(load_request([key], [9000]) for key in KEYS[:2]))
    until("both loads", lambda: owner.in_use() == [1, 1])
    until("the wait for the first", lambda: held_loads.awaited == KEYS[:1])
    gone.close()
    held_loads.let_end(KEYS[0])
    until("the wait for the second", lambda: held_loads.awaited == KEYS[:2])
    readers = [open_reader() for _ in range(2)]

    def read(reader: Reader) -> Callable[[], None]:
        def work() -> None:
            assert load(reader, KEYS[1:2], [9000]) == [True]

        return work

    with at_the_same_time(*map(read, readers)):
        until("all ask", lambda: max(owner.in_use()) == 3)
        held_loads.let_end()
    until("all are free", lambda: owner.in_use() == [])
    assert owner.reads() == 2 * 9000
    assert held_loads.awaited == KEYS[:2]
