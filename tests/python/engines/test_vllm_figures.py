"""Under vLLM's real manager: what is used stays, and events and figures tell what is there."""

import time
from pathlib import Path
from typing import Any

import pytest

from kvring._native import StoredChunks
from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S
from tests.support.disk_usage import disk_bytes, most_disk_bytes

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata, OffloadKey
from vllm.v1.kv_offload.tiering.base import TIER_LABEL, TieringOffloadingMetrics
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

import kvring
from kvring.vllm import KvringTier
from tests.python.engines.vllm_engine import (
    FEW,
    ROW_BYTES,
    ROWS,
    SMALL_BYTES,
    Engine,
    MakeEngine,
    kvring_tier,
    namespace_of,
    number_of,
    stored_by,
)


def number_in(stored: str) -> int:
    """Return the number of a chunk, from the key that the store has."""
    return number_of(OffloadKey(bytes.fromhex(stored.split("@")[3])))


def all_told(engine: Engine, events: list[Any]) -> set[int]:
    """Take events until they tell what the store has, which goes on to make room by itself."""
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while True:
        events += engine.events()
        there = stored_by(events)
        if len(there) == engine.store.stats()["keys"]:
            return there
        assert time.monotonic() < deadline_s, "something is not told"
        time.sleep(0.01)


def test_the_capacity_holds_and_events_tell_what_is_there(
    make_engine: MakeEngine, store_path: Path
) -> None:
    tiers = [kvring_tier(store_path, SMALL_BYTES, lease_s=0)]
    engine = make_engine(tiers, events=True)
    numbers = range(5 * SMALL_BYTES // ROW_BYTES)
    events: list[Any] = []
    with most_disk_bytes(store_path) as most:
        for first in range(0, len(numbers), ROWS):
            engine.put(numbers[first : first + ROWS])
            events += engine.events()
    assert most[0] <= SMALL_BYTES
    there = all_told(engine, events)
    assert len(there) > SMALL_BYTES // ROW_BYTES // 2
    removed = sum(len(event.keys) for event in events if event.removed)
    assert removed == len(numbers) - len(there) > 3 * SMALL_BYTES // ROW_BYTES
    engine.shutdown()
    on_disk = {number_in(chunk["key"]) for chunk in StoredChunks(store_path)}
    assert on_disk <= there
    # A new process is told what there is before anything else.
    engine = make_engine(tiers, events=True)
    engine.put([1 << 20])
    events = engine.events()
    assert not events[0].removed
    told_first = {number_of(key) for key in events[0].keys}
    assert on_disk - told_first == set() or engine.store.stats()["evicted"] > 0
    assert told_first <= on_disk
    before = all_told(engine, events)
    assert before - on_disk == {1 << 20}
    found = engine.found(numbers)
    after = all_told(engine, events) - {1 << 20}
    assert after <= {number for number in numbers if found[number]} <= before
    assert disk_bytes(store_path) <= SMALL_BYTES


def test_all_figures_are_defined(make_engine: MakeEngine, store_path: Path) -> None:
    tiers = [kvring_tier(store_path), {"type": "example"}]
    engine = make_engine(tiers)
    engine.put(FEW)
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)
    with engine.manager.lock:
        stats = engine.manager.get_stats()
    extra = engine.spec.extra_config
    defined = TieringOffloadingSpec.build_metric_definitions(extra)
    types, values = stats.metric_sections()
    for name, of_labels in values.items():
        assert name in defined, name
        kind = type(defined[name]).__name__
        assert kind == f"Offloading{types[name].capitalize()}Metadata", name
        assert {len(labels) for labels in of_labels} == {len(defined[name].labelnames)}, name
    own = KvringTier.build_metric_definitions(tiers[0])
    assert own.keys() <= values.keys()
    assert own.items() <= defined.items()
    assert all(name.startswith("vllm:kvring_") for name in own)
    count = len(FEW) + ROWS
    assert values["vllm:kvring_chunks"] == {(str(store_path),): count}
    assert values["vllm:kvring_capacity_bytes"] == {(str(store_path),): CAPACITY_BYTES}
    assert values["vllm:kvring_healthy"] == {(str(store_path),): 1}
    for name, moved in (("READ_BYTES", len(FEW)), ("WRITE_BYTES", count)):
        moved_bytes = values[getattr(TieringOffloadingMetrics, name)][("1:KvringTier",)]
        assert moved_bytes == moved * ROW_BYTES
    for metadata in own.values():
        assert isinstance(metadata, OffloadingCounterMetadata | OffloadingGaugeMetadata)
        assert metadata.labelnames == ("path",)
        assert metadata.documentation.endswith(".")


def test_counters_tell_what_came_since_the_last_time(
    make_engine: MakeEngine, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvring.vllm.metrics._PAUSE_S", HANG_DEADLINE_S)
    engine = make_engine([kvring_tier(store_path, SMALL_BYTES, lease_s=0)])
    told = 0

    def evicted() -> int:
        stats = engine.tier.get_stats()
        # It is asked in every step, and looks once a second.
        assert engine.tier.get_stats() is None
        engine.tier._metrics._next_s = 0.0
        values = stats.metric_sections()[1]
        count: int = values["vllm:kvring_evicted_chunks"][(str(store_path),)]
        return count

    for first in range(0, 2 * SMALL_BYTES // ROW_BYTES, 4 * ROWS):
        engine.put(range(first, first + 4 * ROWS))
        told += evicted()
        assert told <= engine.store.stats()["evicted"]
    assert told > 0
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    # It goes on to make room by itself.
    while told < engine.store.stats()["evicted"]:
        assert time.monotonic() < deadline_s
        told += evicted()


def test_the_configuration_is_told(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine()
    keys = TieringOffloadingSpec.config_info_keys(engine.spec.extra_config)
    primary, own = engine.manager.config_info()
    assert own.keys() <= set(keys)
    assert primary.keys() <= set(keys)
    assert own == {
        TIER_LABEL: "1:KvringTier",
        "kvring_path": str(store_path),
        "kvring_capacity_bytes": CAPACITY_BYTES,
        "kvring_engine": engine.store.stats()["engine"],
        "kvring_namespace": namespace_of(engine),
        "kvring_version": kvring.__version__,
    }
