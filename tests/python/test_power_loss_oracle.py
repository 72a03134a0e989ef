"""The oracle of `tools.vm.power_loss`: what it takes for lost, and what for as promised."""

from pathlib import Path

import pytest

from tools.vm.cut_machine import GuestLine
from tools.vm.guest.power_loss import KEYS, LASTING_KEYS
from tools.vm.power_loss_oracle import Cut, Row

EVICTING = LASTING_KEYS
# Two versions of keys 0 and EVICTING, a deleted key 1, and key 2, which is stored when it is cut.
TOLD = [
    GuestLine("ready", 0, [], 0),
    GuestLine("set", 1, [0, 1, EVICTING], 100),
    GuestLine("done", 1, [], 200),
    GuestLine("delete", 2, [1], 300),
    GuestLine("done", 2, [], 400),
    GuestLine("set", 3, [0, EVICTING], 500),
    GuestLine("done", 3, [], 600),
    GuestLine("set", 4, [2], 700),
]
ALL_THERE = {0: 3, 1: None, 2: None, EVICTING: 3}


def judge(
    found: dict[int, int | str | None],
    *,
    is_persistent: bool = True,
    age_ms: int = 0,
    flush_ms: int = 0,
    failure: str | None = None,
) -> Row:
    """Return the row of a cut so long after the last answer, with this instead of what is right."""
    row = Row("case", is_control=False)
    told = [*TOLD, GuestLine("time", flush_ms, [], 600 + age_ms)]
    versions = ALL_THERE | found
    cut = Cut(row, "cut", told, is_persistent, Path())
    cut.judge(failure, [versions.get(number) for number in range(KEYS)])
    return row


@pytest.mark.parametrize("found", [{}, {2: 4}, {EVICTING: None}])
def test_what_may_be_there_is_as_promised(found: dict[int, int | str | None]) -> None:
    row = judge(found, age_ms=200)
    assert row.is_as_promised, row
    assert (row.batches, row.promised, row.lost_within) == (3, 1, 0)


@pytest.mark.parametrize("found", [{0: None}, {0: 1}, {1: 1}, {EVICTING: 1}, {3: 9}])
def test_a_lost_or_older_chunk_is_lost_beyond_the_bound(
    found: dict[int, int | str | None],
) -> None:
    row = judge(found, age_ms=200)
    assert (row.lost_beyond, row.lost_within, row.is_as_promised) == (1, 0, False)


@pytest.mark.parametrize(
    ("age_ms", "flush_ms", "is_within"),
    [(1900, 0, True), (2100, 0, False), (2100, 1100, True), (3400, 1100, False)],
)
def test_best_effort_loses_what_is_younger_than_its_bound(
    age_ms: int, flush_ms: int, is_within: bool
) -> None:
    row = judge({0: 1}, is_persistent=False, age_ms=age_ms, flush_ms=flush_ms)
    assert (row.lost_within, row.lost_beyond) == (int(is_within), int(not is_within))
    if is_within:
        assert row.oldest_lost_s == age_ms / 1000


def test_best_effort_may_lose_a_chunk_that_is_being_replaced() -> None:
    assert judge({0: None}, is_persistent=False, age_ms=1900).is_as_promised
    assert judge({0: None}, is_persistent=False, age_ms=2100).lost_beyond == 1


def test_wrong_bytes_and_failed_opens_are_never_as_promised() -> None:
    assert judge({0: "wrong bytes"}, is_persistent=False).wrong == 1
    assert judge({EVICTING: "wrong bytes"}).wrong == 1
    row = judge({}, failure="FormatError: damaged")
    assert (row.failed_opens, row.is_as_promised) == (1, False)


def test_a_control_without_losses_is_not_caught() -> None:
    control = Row("control", is_control=True)
    assert not control.is_as_promised
    control.lost_beyond = 1
    assert control.is_as_promised
