"""Pages that are longer than what ranks read from each other: the log says so."""

import logging

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

from kvring.ranks import SEGMENT_BYTES
from tests.python.engines.sglang_host import KEYS, TOKENS, OpenRank

BLOCK_BYTES = 4096
# Of pools with few pages: a page of this width has a bit less than a segment, and each of its
# layers a part of a block besides whole ones.
FITTING = 29127
TOO_LONG = FITTING + 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says of long pages."""
    return [text for text in caplog.messages if "lower --page-size" in text]


def shape_of(width: int) -> dict[str, int]:
    """Return the shape of a pool with pages as long as the GPU's pool."""
    return {"width": width, "page_tokens": TOKENS}


@pytest.mark.parametrize(
    ("layout", "v1", "width", "is_too_long"),
    [
        ("page_first", True, FITTING, False),
        ("page_first", True, TOO_LONG, True),
        ("page_first", False, FITTING, False),
        ("page_first", False, TOO_LONG, True),
        # A part for each layer.
        ("layer_first", True, FITTING, True),
        ("layer_first", False, FITTING, False),
        ("layer_first", False, TOO_LONG, True),
    ],
)
def test_ranks_warn_of_pages_that_they_cannot_read_from_each_other(
    open_rank: OpenRank,
    caplog: pytest.LogCaptureFixture,
    layout: str,
    v1: bool,
    width: int,
    is_too_long: bool,
) -> None:
    caplog.set_level(logging.WARNING, "kvring.sglang")
    ranks = [
        open_rank("mla", layout, v1=v1, shape=shape_of(width), tp_rank=rank, tp_size=2)
        for rank in range(2)
    ]
    expected = (
        f"pages of SGLang's pool 'kv' have {ranks[0].pages.page_bytes} bytes, and ranks read pages "
        f"of up to {SEGMENT_BYTES} from each other: none of it will be found; lower --page-size"
    )
    assert warnings(caplog) == [expected] * (2 if is_too_long else 0)
    # It is true.
    assert ranks[0].store(KEYS[:1]) == [True]
    assert ranks[1].load(KEYS[:1]) == [not is_too_long]
