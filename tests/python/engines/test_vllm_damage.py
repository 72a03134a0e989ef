"""What damaged bytes, and a device that fails, make of the jobs of KvringTier."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvring._native import StoredChunks
from tests.python.conftest import MIB
from tests.python.faulty_device import FaultyDevice, faulty_device

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from tests.python.engines.vllm_engine import kvring_tier, make_config
from tests.python.engines.vllm_lone_tier import LoneTier, MakeTier, loaded_of
from tests.support.damage import damage
from tests.support.vllm_config import key_of

DEVICE_BYTES = 128 * MIB


def test_damaged_bytes_are_not_loaded(make_tier: MakeTier, store_path: Path) -> None:
    numbers = list(range(8))
    bad = [2, 5]
    tier = make_tier()
    tier.store_all(numbers)
    tier.close()
    names = {key_of(number).hex() for number in bad}
    keys = [one["key"] for one in StoredChunks(store_path)]
    assert len(damage(store_path, *(key for key in keys if key.split("@")[3] in names))) == len(bad)
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
