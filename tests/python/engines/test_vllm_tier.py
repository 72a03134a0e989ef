"""KvringTier as vLLM's manager calls it, job by job."""

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.python.conftest import HANG_DEADLINE_S, MIB

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import Locality, Medium, OffloadPolicy, ReqContext

from tests.python.engines.vllm_engine import ROWS, SMALL_BYTES, kvring_tier, make_config
from tests.python.engines.vllm_lone_tier import LoneTier, MakeTier, loaded_of
from tests.support.vllm_config import key_of


@pytest.fixture
def tier(make_tier: MakeTier) -> LoneTier:
    """A tier over an empty store."""
    return make_tier()


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
    # All at once: a drive must not have stored the one before while a row is filled.
    tier.fill(range(tier.rows), range(tier.rows))
    jobs = {tier.submit([row], [row], "request", is_load=False): row for row in range(tier.rows)}
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_that_a_worker_has_not_written_are_not_stored(
    store_path: Path, ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    with LoneTier(make_config([kvring_tier(store_path)], tp_size=ranks)) as tier:
        assert_that_empty_cells_are_not_stored(tier, caplog)


def assert_that_empty_cells_are_not_stored(
    tier: LoneTier, caplog: pytest.LogCaptureFixture
) -> None:
    cell_bytes = tier.spec.cpu_page_size_per_worker
    # There is no engine around the tier, and it has said so.
    caplog.clear()
    tier.store_all([0])
    for number in range(1, 12):
        tier.fill([number], [1])
        tier.row(1)[-cell_bytes:] = bytes(cell_bytes)
        job = tier.submit([number], [1], "request", is_load=False)
        assert not tier.finished()[job].success
    (record,) = caplog.records
    for part in ("row 1 of the primary tier", "/dev/shm was replaced", "on another machine"):
        assert part in record.getMessage()
    assert tier.lookup(range(12)) == [True] + [False] * 11
    # Ten of them are no accident: nothing is stored from then on, and what is stored is loaded.
    job = tier.submit_store([20], [2])
    assert not tier.finished()[job].success
    job = tier.submit_load([0], [3])
    assert tier.finished()[job].success
    assert tier.holds([0], [3]) == [True]


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
