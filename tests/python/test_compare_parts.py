"""Parts of the comparison that need no device: growth, opening, and the profile of locks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvring
from benches.compare import growth, opening, sections
from benches.compare.arena import Arena
from benches.compare.clients import NativeClient
from benches.compare.goals import MISSED, NOT_MEASURED, REACHED, goals
from benches.compare.mixed import MixedSetting
from benches.compare.neighbours import OneChunk, QueueSetting
from benches.compare.peers import KVRING
from benches.compare.samples import Sample, Samples
from benches.compare.scale import MIB, growth_plan
from benches.compare.server import mean_of
from benches.compare.tables import section_tables
from benches.compare.workload import TransferError, chunk_names, timed_delete, timed_get, timed_set
from benches.contention.__main__ import parse_report

BLOCK = 4096


def test_a_run_with_a_number_of_stores_ends_with_them(tmp_path: Path) -> None:
    plan = replace(growth_plan(24, 4), chunk_size_bytes=BLOCK, sets_in_flight=4)
    connector: Any = kvring.Connector(str(tmp_path / "store"), 64 * MIB)
    client = NativeClient(connector)
    try:
        setting = MixedSetting(client, Arena(MIB, huge_pages=False), plan)
        assert setting.measure(0, with_sets=True).set_mb_per_s > 0
        stats = connector.stats()
    finally:
        client.close()
    # Four were in flight when the last one that counts was answered; all are deleted in the end.
    assert 24 <= stats["set_stored"] - plan.loadable_chunks <= 24 + 4
    assert stats["keys"] == plan.loadable_chunks


def test_goal_of_growth_takes_all_rounds_together() -> None:
    def sample(case: str, peer: str, p999_ms: float) -> Sample:
        return Sample(growth.GROWTH, case, MIB, peer, 0, {growth.P999: p999_ms})

    samples = Samples(
        [
            *(sample("", growth.GROWING, 9.0), sample("", growth.SETTLED, 1.0)),
            *(
                sample(growth.POOLED, growth.GROWING, 6.0),
                sample(growth.POOLED, growth.SETTLED, 5.0),
            ),
        ]
    )
    listed = goals({sections.GROWTH: samples})
    (goal,) = (one for one in listed if one.compared_with == growth.SETTLED)
    assert (goal.target, goal.verdict) == (1.3, REACHED)
    assert goal.measured is not None
    assert goal.measured.median == pytest.approx(1.2)


def test_a_store_is_opened_by_a_process_of_its_own(tmp_path: Path) -> None:
    store = tmp_path / "store"
    opening._fill(store, 64 * MIB, 300)
    values = opening._opened(store, 64 * MIB, 300)
    assert values[opening.OPEN_TIME] > 0
    with pytest.raises(TransferError, match="300 of 301"):
        opening._opened(store, 64 * MIB, 301)


def test_goals_of_opening_are_for_so_many_keys() -> None:
    def section(key_count: int) -> Samples:
        values = {opening.OPEN_TIME: 0.5, opening.KEY_MEMORY: 119.0}
        return Samples([Sample(opening.OPEN, opening.case_of(key_count), 0, KVRING, 0, values)])

    few = {goal.what: goal.verdict for goal in goals({sections.OPENING: section(100_000)})}
    many = {goal.what: goal.verdict for goal in goals({sections.OPENING: section(10_000_000)})}
    million = {goal.what: goal.verdict for goal in goals({sections.OPENING: section(1_000_000)})}
    assert few["open of 10,000,000 keys"] == NOT_MEASURED
    assert many["open of 10,000,000 keys"] == REACHED
    assert many["memory for a key, of 10,000,000 keys"] == REACHED
    assert million["open of 1,000,000 keys"] == MISSED
    (table,) = section_tables(sections.OPENING, section(1_000_000))
    assert table.rows == [["kvring 1,000,000 keys", "0.500", "119"]]


def test_a_batch_as_one_chunk_has_all_of_its_bytes(tmp_path: Path) -> None:
    connector: Any = kvring.Connector(str(tmp_path / "store"), 64 * MIB)
    arena = Arena(MIB, huge_pages=False)
    client = NativeClient(OneChunk(connector, arena))
    names = chunk_names("joined", 64)
    try:
        timed_set(client, names, arena.to_store(BLOCK, 64), 32)
        keys = connector.stats()["keys"]
        timed_get(client, names, arena.to_load(BLOCK, 64), 32)
        different = arena.differing_chunks(BLOCK, 64)
        timed_delete(client, names, 64)
        keys_left = connector.stats()["keys"]
    finally:
        del connector
        client.close()
    assert (keys, different, keys_left) == (2, [], 0)


def test_chunks_that_lie_apart_are_not_joined() -> None:
    arena = Arena(MIB, huge_pages=False)
    first, second, third = arena.to_store(BLOCK, 3)
    assert arena.joined([first, second]) == bytes(first) + bytes(second)
    with pytest.raises(ValueError, match="side by side"):
        arena.joined([first, third])


def test_a_setting_of_a_queue_is_given_back(tmp_path: Path) -> None:
    setting = tmp_path / "nomerges"
    setting.write_text("1\n")
    changed = QueueSetting(setting)
    assert setting.read_text() == "2"
    changed.close()
    assert setting.read_text() == "1\n"


REPORT = """
# Overhead  Shared Object         Symbol
# ........  ....................  ...............................
    50.00%  [kernel.kallsyms]     [k] futex_wake
    30.00%  _native.so            [.] std::sys::sync::mutex::futex::Mutex::lock_contended
    20.00%  _native.so            [.] <kvring::cache::Cache>::end_set
"""


def test_locks_are_known_in_a_profile() -> None:
    lines = parse_report(REPORT)
    assert [line.percent for line in lines] == [50.0, 30.0, 20.0]
    assert [line.is_lock for line in lines] == [True, True, False]
    assert [line.in_kernel for line in lines] == [True, False, False]


def test_mean_of_a_histogram() -> None:
    page = """# TYPE load_GBy histogram
load_GBy_bucket{le="1.0"} 1.0
load_GBy_sum{l2_name="a"} 3.0
load_GBy_count{l2_name="a"} 2.0
load_GBy_sum{l2_name="b"} 5.0
load_GBy_count{l2_name="b"} 2.0
reload_GBy_sum 100.0
"""
    assert mean_of(page, "load") == 2.0
    assert mean_of(page, "store") == 0.0
