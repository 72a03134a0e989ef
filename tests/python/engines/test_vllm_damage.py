"""What damaged bytes, and a device that fails, make of the jobs of KvringTier."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvring._native import StoredChunks
from tests.python.conftest import MIB
from tests.python.faulty_device import FaultyDevice, faulty_device

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from tests.python.engines.vllm_engine import ROWS, kvring_tier, make_config
from tests.python.engines.vllm_lone_tier import LoneTier, MakeTier, loaded_of
from tests.support.vllm_config import key_of

DEVICE_BYTES = 128 * MIB


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
