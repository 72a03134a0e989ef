"""How keys are split into pieces, and where their parts lie in a segment."""

import random
from collections.abc import Sequence

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring.ranks.segments import offsets_of, pieces_of
from tests.python.conftest import BLOCK_BYTES
from tests.python.ranks.owners import FEW_SEGMENTS, SEGMENT_BYTES


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
        pieces = list(pieces_of(lengths, parts))
        keys = [key for first, end in pieces for key in range(first, end)]
        # Each that fits once, in order, and no other.
        assert keys == [key for key in range(count) if own[key] <= SEGMENT_BYTES]
        for first, end in pieces:
            span = lengths[first * parts : end * parts]
            assert offsets_of(span)[-1] + span[-1] <= SEGMENT_BYTES
            assert end == count or sum(own[first : end + 1]) > SEGMENT_BYTES
        alone += len(keys) < count
    assert alone > 100


def test_parts_lie_in_blocks_of_their_own() -> None:
    choose = random.Random(2)
    for _ in range(200):
        lengths = [choose.randint(1, 20_000) for _ in range(choose.randint(1, 20))]
        offsets = offsets_of(lengths)
        assert offsets[0] == 0
        for number, offset in enumerate(offsets[1:], 1):
            end = offsets[number - 1] + lengths[number - 1]
            assert offset % BLOCK_BYTES == 0
            assert end <= offset < end + BLOCK_BYTES
    assert offsets_of([]) == []
