"""Pieces that a reader asks for before it has copied those before them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks import Reader
from kvring.ranks.reader import _Link
from tests.python.conftest import until
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, SEGMENT_BYTES, SEGMENTS, HeldLoads, Owner
from tests.python.ranks.readers import (
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
