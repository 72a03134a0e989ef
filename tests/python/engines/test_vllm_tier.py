"""KvringTier as vLLM's manager calls it, job by job, and what a failing disk makes of jobs."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvring._native import StoredChunks
from tests.python.conftest import BLOCK_BYTES, CAPACITY_BYTES, HANG_DEADLINE_S, MIB
from tests.python.faulty_device import FaultyDevice, faulty_device

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadPolicy,
    ReqContext,
)

from tests.python.engines.vllm_engine import (
    ROWS,
    LoneTier,
    content_of,
    key_of,
    kvring_tier,
    make_config,
    number_of,
)

MakeTier = Callable[..., LoneTier]

SMALL_BYTES = 16 * MIB
DEVICE_BYTES = 128 * MIB


@pytest.fixture
def make_tier(store_path: Path) -> Iterator[MakeTier]:
    """Make tiers over the test's store, or over another path; they are closed at the end."""
    tiers: list[LoneTier] = []

    def make(
        path: Path = store_path, capacity: object = CAPACITY_BYTES, **options: Any
    ) -> LoneTier:
        config = {name: options.pop(name) for name in ("rows", "row_bytes") if name in options}
        tiers.append(LoneTier(make_config([kvring_tier(path, capacity, **options)], **config)))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()


@pytest.fixture
def tier(make_tier: MakeTier) -> LoneTier:
    """A tier over an empty store."""
    return make_tier()


def loaded_of(result: Any) -> list[int]:
    """Return which chunks of a failed load are there nevertheless."""
    assert not result.success
    return [number_of(key) for key in result.successful_keys]


def test_an_empty_tier_misses(tier: LoneTier) -> None:
    assert tier.lookup(range(10)) == [False] * 10
    assert tier.taken() == {}
    assert not tier.tier.has_pending_work()


@pytest.mark.parametrize("count", [0, 1, 2, 5, ROWS // 2])
def test_what_was_stored_is_loaded_into_other_rows(tier: LoneTier, count: int) -> None:
    numbers = list(range(count))
    rows = list(range(ROWS // 2, ROWS // 2 + count))[::-1]
    store = tier.submit_store(numbers, range(count))
    result = tier.finished()[store]
    assert result.success
    assert result.transfer_bytes == count * tier.row_bytes
    assert 0 <= result.transfer_time < HANG_DEADLINE_S
    assert tier.lookup(numbers) == [True] * count
    before = bytes(tier.memory)
    load = tier.submit_load(numbers, rows)
    result = tier.finished()[load]
    assert result.success
    assert result.successful_keys is None
    assert result.transfer_bytes == count * tier.row_bytes
    assert tier.holds(numbers, rows) == [True] * count
    # No other row was touched.
    for row in set(range(ROWS)) - set(rows):
        assert tier.row(row) == before[row * tier.row_bytes : (row + 1) * tier.row_bytes]
    assert tier.lookup(numbers) == [True] * count


def test_rows_may_be_in_any_order(tier: LoneTier) -> None:
    numbers, rows = [5, 3, 9, 1], [7, 0, 15, 2]
    tier.submit_store(numbers, rows)
    assert [result.success for result in tier.finished().values()] == [True]
    load = tier.submit_load([9, 5, 1, 3], [3, 2, 1, 0])
    assert tier.finished()[load].success
    assert tier.holds([9, 5, 1, 3], [3, 2, 1, 0]) == [True] * 4


def test_a_load_of_what_is_not_there_fails_once(tier: LoneTier) -> None:
    job = tier.submit_load([99], [0])
    finished = tier.finished()
    assert list(finished) == [job]
    assert loaded_of(finished[job]) == []
    assert finished[job].transfer_bytes == 0
    assert tier.finished() == {}


@pytest.mark.parametrize("missing", [[0], [2], [4], [1, 3], [0, 1, 2, 3]])
def test_a_load_that_fails_in_part_names_what_is_there(tier: LoneTier, missing: list[int]) -> None:
    numbers = list(range(5))
    there = [number for number in numbers if number not in missing]
    tier.store_all(there)
    job = tier.submit_load(numbers, range(5))
    result = tier.finished()[job]
    assert loaded_of(result) == there
    assert result.transfer_bytes == len(there) * tier.row_bytes
    assert tier.holds(there, there) == [True] * len(there)
    assert tier.lookup(numbers) == [number in there for number in numbers]
    tier.finish_request()
    assert tier.lookup(numbers) == [number in there for number in numbers]


def test_what_is_stored_in_another_length_is_not_loaded(store_path: Path) -> None:
    """The namespace tells lengths apart; below it the store does as well."""
    with LoneTier(make_config([kvring_tier(store_path)])) as tier:
        tier.store_all([1])
        tier.tier._row_bytes = tier.row_bytes - BLOCK_BYTES
        job = tier.submit_load([1], [0])
        assert loaded_of(tier.finished()[job]) == []


@pytest.mark.parametrize("row", [-1, ROWS])
@pytest.mark.parametrize("is_load", [False, True], ids=["store", "load"])
def test_a_row_outside_of_the_memory_fails_the_job(tier: LoneTier, row: int, is_load: bool) -> None:
    tier.store_all([1, 2])
    whole = bytes(tier.whole)
    job = tier.submit([1, 2], [0, row], "one", is_load=is_load)
    assert not tier.finished()[job].success
    assert tier.whole == whole
    # A load is not tried again.
    assert tier.lookup([1, 2], "one") == [not is_load] * 2
    tier.finish_request("one")
    assert tier.lookup([1, 2]) == [True, True]
    job = tier.submit_load([1, 2], [4, 5])
    assert tier.finished()[job].success
    assert tier.holds([1, 2], [4, 5]) == [True, True]


def test_jobs_are_independent_and_each_finishes_once(tier: LoneTier) -> None:
    """Taken as they come, without waiting, stores and loads mixed."""
    stored = list(range(4))
    tier.store_all(stored)
    expected: dict[int, bool] = {}
    for round_number in range(6):
        store = tier.submit_store([100 + round_number], [8 + round_number])
        load = tier.submit_load([stored[round_number % 4]], [round_number])
        lost = tier.submit_load([1000 + round_number], [14 + round_number % 2])
        expected |= {store: True, load: True, lost: False}
        if round_number % 2:
            tier.tier.drain_jobs()
    told: Counter[int] = Counter()
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while told.total() < len(expected):
        assert time.monotonic() < deadline_s, f"{expected.keys() - told.keys()} do not finish"
        for job, result in tier.taken().items():
            assert result.success == expected[job]
            told[job] += 1
    assert told == Counter(expected.keys())
    assert tier.finished() == {}
    assert tier.holds([number % 4 for number in range(6)], range(6)) == [True] * 6
    assert tier.lookup(range(100, 106)) == [True] * 6


def test_what_is_stored_again_is_not_written_again(tier: LoneTier) -> None:
    tier.store_all(range(8))
    written = tier.store.stats()["written_bytes"]
    tier.store_all(range(8))
    assert tier.store.stats()["written_bytes"] == written


def test_what_was_found_stays_until_it_is_loaded(make_tier: MakeTier) -> None:
    tier = make_tier(capacity=SMALL_BYTES, eviction="lru")
    found, others = range(8), range(100, 100 + 2 * SMALL_BYTES // tier.row_bytes)
    tier.store_all([*found, *range(50, 58)])
    assert tier.lookup(found) == [True] * 8
    tier.store_all(others)
    job = tier.submit_load(found, range(8))
    assert tier.finished()[job].success
    assert tier.holds(found, range(8)) == [True] * 8
    assert tier.lookup(range(50, 58)) == [False] * 8


def test_stores_past_the_queue_fail_and_may_come_again(make_tier: MakeTier) -> None:
    tier = make_tier(rows=48, row_bytes=MIB, set_queue_bytes=MIB)
    jobs = {tier.submit_store([row], [row]): row for row in range(tier.rows)}
    finished = tier.finished()
    assert set(finished) == set(jobs)
    stored = [jobs[job] for job, result in finished.items() if result.success]
    assert 0 < len(stored) < tier.rows
    assert tier.lookup(range(tier.rows)) == [row in stored for row in range(tier.rows)]
    assert tier.store.stats()["set_rejected_queue_full"] == tier.rows - len(stored)
    for row in range(tier.rows):
        tier.submit_store([row], [row])
        tier.tier.drain_jobs()
    assert all(result.success for result in tier.taken().values())
    assert all(tier.lookup(range(tier.rows)))


def test_draining_waits_for_all_and_leaves_the_results(make_tier: MakeTier) -> None:
    tier = make_tier(rows=32, row_bytes=MIB)
    jobs = [tier.submit_store([row], [row]) for row in range(tier.rows)]
    tier.tier.drain_jobs()
    assert tier.store.stats()["in_flight"] == 0
    # Nobody reads these rows any more.
    tier.clear(range(tier.rows))
    results = tier.taken()
    assert set(results) == set(jobs)
    assert all(result.success for result in results.values())
    load = tier.submit_load(range(tier.rows), range(tier.rows))
    tier.tier.drain_jobs()
    assert all(tier.holds(range(tier.rows), range(tier.rows)))
    assert tier.taken()[load].success
    tier.tier.drain_jobs()


def test_a_shutdown_with_jobs_queued_leaves_the_memory_alone(make_tier: MakeTier) -> None:
    tier = make_tier(rows=64, row_bytes=MIB)
    tier.store_all(range(32))
    for row in range(32):
        tier.submit(range(row, row + 1), [row], "loads", is_load=True)
        tier.submit(range(100 + row, 101 + row), [32 + row], "stores", is_load=False)
    tier.tier.shutdown()
    tier.memory[:] = b"\xa5" * len(tier.memory)
    time.sleep(0.2)
    assert tier.memory == b"\xa5" * len(tier.memory)
    # What vLLM may still ask, and a second shutdown, find a tier that has nothing.
    tier.tier.shutdown()
    assert tier.lookup(range(32)) == [False] * 32
    tier.tier.touch([key_of(0)], tier.request("late"))
    assert not tier.tier.has_pending_work()
    tier.taken()
    for is_load in (False, True):
        job = tier.submit([0], [0], "late", is_load=is_load)
        assert not tier.taken()[job].success


def test_what_a_request_could_not_load_is_a_miss_for_it_alone(tier: LoneTier) -> None:
    load = tier.submit_load([1, 2], [0, 1], "first")
    assert loaded_of(tier.finished()[load]) == []
    # Another request computes the chunk, and stores it.
    tier.submit_store([1], [2], "second")
    assert all(result.success for result in tier.finished().values())
    assert tier.lookup([1, 2], "first") == [False, False]
    assert tier.lookup([1, 2], "second") == [True, False]
    assert tier.lookup([1, 2], "third") == [True, False]
    tier.finish_request("second")
    assert tier.lookup([1], "first") == [False]
    tier.finish_request("first")
    assert tier.lookup([1], "first") == [True]


def test_what_a_request_could_not_load_and_stored_itself_is_a_hit(tier: LoneTier) -> None:
    tier.submit_load([1, 2], [0, 1], "one")
    tier.finished()
    tier.submit_store([1], [2], "one")
    tier.finished()
    assert tier.lookup([1, 2], "one") == [True, False]


def test_nothing_is_kept_of_a_request_that_ended_before_its_load_failed(tier: LoneTier) -> None:
    """vLLM tells the end of a request while its jobs may still be under way."""
    tier.submit_load([1], [0], "one")
    tier.finish_request("one")
    tier.finished()
    tier.store_all([1])
    assert tier.lookup([1], "one") == [True]


def test_a_request_asks_for_new_chunks_alone(tier: LoneTier) -> None:
    context = tier.tier.on_new_request(ReqContext(req_id="one"))
    assert context.policy is OffloadPolicy.CHUNK_LEVEL


@pytest.mark.parametrize("locality", ["LOCAL", "REMOTE", None])
def test_the_locality_is_what_was_asked_for(make_tier: MakeTier, locality: str | None) -> None:
    tier = make_tier(**({} if locality is None else {"locality": locality}))
    assert tier.tier.locality is Locality(locality or "LOCAL")
    assert tier.tier.medium is Medium.STORAGE


@pytest.mark.parametrize("locality", ["local", "", "NEAR"])
def test_a_wrong_locality_is_refused(make_tier: MakeTier, store_path: Path, locality: str) -> None:
    with pytest.raises(ValueError, match="Locality"):
        make_tier(locality=locality)
    assert not store_path.exists()


def test_one_group_of_layers_does_not_see_the_chunks_of_another(tier: LoneTier) -> None:
    tier.store_all([1])
    other = key_of(1)[:-4] + (1).to_bytes(4, "big")
    assert tier.tier.lookup(other, tier.request()) is LookupResult.MISS


def flip_middle(store: Path, chunk: dict[str, Any]) -> None:
    """Change a bit in the middle of a chunk, in the file of a store that is closed."""
    with (store / chunk["file"]).open("r+b") as file:
        at = chunk["offset_bytes"] + chunk["length_bytes"] // 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
        os.fsync(file.fileno())


def test_damaged_bytes_are_not_loaded(make_tier: MakeTier, store_path: Path) -> None:
    numbers = list(range(8))
    bad = [2, 5]
    tier = make_tier()
    tier.store_all(numbers)
    tier.close()
    names = {key_of(number).hex() for number in bad}
    damaged = [one for one in StoredChunks(store_path) if one["key"].split("@")[3] in names]
    assert len(damaged) == len(bad)
    for chunk in damaged:
        flip_middle(store_path, chunk)
    tier = make_tier()
    assert tier.lookup(numbers, "one") == [True] * 8
    job = tier.submit_load(numbers, range(8), "one")
    good = [number for number in numbers if number not in bad]
    assert loaded_of(tier.finished()[job]) == good
    assert all(tier.holds(good, good))
    assert tier.store.stats()["checksum_mismatch"] == len(bad)
    # It computes them anew: nobody finds them any more, until they are stored again.
    for request in ("one", "two"):
        assert tier.lookup(numbers, request) == [number in good for number in numbers]
    tier.store_all(bad)
    assert tier.lookup(numbers, "two") == [True] * 8
    job = tier.submit_load(numbers, range(8), "two")
    assert tier.finished()[job].success
    assert all(tier.holds(numbers, range(8)))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FaultyDevice]:
    """A block device that fails when it is told to."""
    with faulty_device(tmp_path, DEVICE_BYTES) as device:
        yield device


@pytest.fixture
def tier_on_device(device: FaultyDevice) -> Iterator[LoneTier]:
    """A tier over a store on that device."""
    with LoneTier(make_config([kvring_tier(device.path, "all")])) as tier:
        yield tier
        # Before the store is closed.
        device.mend()


@pytest.mark.root
def test_loads_from_a_device_that_fails_are_failed_jobs(
    device: FaultyDevice, tier_on_device: LoneTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier = tier_on_device
    numbers = list(range(6))
    tier.store_all(numbers)
    device.fail("read")
    jobs = [tier.submit_load([number], [number], "one") for number in numbers]
    finished = tier.finished()
    assert set(finished) == set(jobs)
    assert all(loaded_of(result) == [] for result in finished.values())
    assert any("Input/output error" in record.getMessage() for record in caplog.records)
    # The request would ask again and again otherwise; the chunks are there for others.
    assert tier.lookup(numbers, "one") == [False] * 6
    assert tier.lookup(numbers, "two") == [True] * 6
    device.mend()
    assert tier.lookup(numbers, "one") == [False] * 6
    job = tier.submit_load(numbers, range(6), "two")
    assert tier.finished()[job].success
    assert all(tier.holds(numbers, range(6)))


@pytest.mark.root
def test_stores_to_a_device_that_fails_are_failed_jobs(
    device: FaultyDevice, tier_on_device: LoneTier
) -> None:
    tier = tier_on_device
    tier.store_all([0, 1])
    device.fail("write")
    jobs = [tier.submit_store([number], [number]) for number in range(2, 6)]
    finished = tier.finished()
    assert set(finished) == set(jobs)
    assert not any(result.success for result in finished.values())
    # Only a load may keep some of its keys.
    assert all(result.successful_keys is None for result in finished.values())
    assert tier.lookup(range(6)) == [True, True, False, False, False, False]
    device.mend()
    tier.store_all(range(6))
    job = tier.submit_load(range(6), range(8, 14))
    assert tier.finished()[job].success
    assert all(tier.holds(range(6), range(8, 14)))


@pytest.mark.root
def test_a_shutdown_on_a_device_that_fails_comes_back(
    device: FaultyDevice, tier_on_device: LoneTier
) -> None:
    tier = tier_on_device
    device.fail("write")
    for row in range(ROWS):
        tier.submit_store([row], [row])
    tier.close()
    device.mend()
    with LoneTier(make_config([kvring_tier(device.path, "all")])) as tier:
        tier.store_all(range(ROWS))
        job = tier.submit_load(range(ROWS), range(ROWS))
        assert tier.finished()[job].success
        assert all(tier.holds(range(ROWS), range(ROWS)))


def test_contents_differ_at_each_place_and_for_each_chunk() -> None:
    """Else the tests here would prove little."""
    pages = {
        content_of(number)[at : at + 16] for number in range(50) for at in range(0, 65536, 4096)
    }
    assert len(pages) == 50 * 16
