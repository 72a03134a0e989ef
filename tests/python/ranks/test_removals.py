"""A segment outlives what was stored: no reader gets from it what the owner has no more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")

from kvring import set_epoch
from kvring.ranks import Reader
from tests.python.conftest import until
from tests.python.ranks.owners import FEW_SEGMENTS, KEYS, PREFIX, HeldLoads, Owner
from tests.python.ranks.readers import at_the_same_time, load

pytestmark = FEW_SEGMENTS

LENGTHS = [5000, 100]


def begin_epoch(owner: Owner) -> None:
    set_epoch(owner.store.path, "step-2")


def purge(owner: Owner) -> None:
    assert owner.store.connector.purge(PREFIX.split("@")[0])["keys"] == 4 * len(LENGTHS)


def delete(owner: Owner) -> None:
    for key in KEYS[:4]:
        owner.delete_part(key, 1)


REMOVALS = pytest.mark.parametrize("remove", [begin_epoch, purge, delete])


@REMOVALS
def test_a_key_that_was_removed_is_a_miss(
    owner: Owner, open_reader: Callable[[], Reader], remove: Callable[[Owner], None]
) -> None:
    one, other = open_reader(), open_reader()
    owner.put(KEYS[:4], LENGTHS)
    assert load(one, KEYS[:4], LENGTHS) == [True] * 4
    remove(owner)
    for reader in (one, other):
        assert reader.exists(PREFIX, KEYS[:4], len(LENGTHS)) == [False] * 4
        assert load(reader, KEYS[:4], LENGTHS) == [False] * 4


@REMOVALS
def test_nobody_joins_a_load_that_began_before_a_removal(
    owner: Owner,
    open_reader: Callable[[], Reader],
    held_loads: HeldLoads,
    remove: Callable[[Owner], None],
) -> None:
    owner.put(KEYS[:4], LENGTHS)
    early, late = open_reader(), open_reader()
    held_loads.hold(KEYS[0])
    late_results: list[bool | None] = []
    with at_the_same_time(lambda: load(early, KEYS[:4], LENGTHS)):
        until("the first waits for the drive", lambda: held_loads.awaited == [KEYS[0]])
        remove(owner)
        with at_the_same_time(lambda: late_results.extend(load(late, KEYS[:4], LENGTHS))):
            until("both have asked", lambda: sum(owner.in_use()) == 2)
            held_loads.let_end()
    assert late_results == [False] * 4


def test_an_epoch_that_returns_has_its_keys_again(
    owner: Owner, reader: Reader, store_directory: Path
) -> None:
    owner.put(KEYS[:4], LENGTHS)
    set_epoch(store_directory, "step-2")
    owner.put(KEYS[2:4], LENGTHS, version=2)
    assert load(reader, KEYS[:2], LENGTHS) == [False, False]
    assert load(reader, KEYS[2:4], LENGTHS, version=2) == [True, True]
    set_epoch(store_directory, "")
    assert load(reader, KEYS[:2], LENGTHS) == [True, True]
    assert load(reader, KEYS[2:4], LENGTHS, version=2) == [False, False]


def test_a_load_during_which_an_epoch_began_belongs_to_neither(
    owner: Owner,
    open_reader: Callable[[], Reader],
    store_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_epoch(store_directory, "step-2")
    owner.put(KEYS[:2], LENGTHS)
    set_epoch(store_directory, "")
    submit = owner.server._submit

    def submit_late(*request: Any) -> int:
        set_epoch(store_directory, "step-2")
        return submit(*request)

    with monkeypatch.context() as patches:
        patches.setattr(owner.server, "_submit", submit_late)
        assert load(open_reader(), KEYS[:2], LENGTHS) == [True, True]
    set_epoch(store_directory, "")
    assert load(open_reader(), KEYS[:2], LENGTHS) == [False, False]
