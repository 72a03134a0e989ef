"""kvring and vLLM's other tiers below one primary tier, and stores that are too slow."""

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, TierFilter, TierMatcher
from vllm.v1.kv_offload.tiering.backpressure import DropStorePolicy
from vllm.v1.kv_offload.tiering.base import TieringOffloadingMetrics

from tests.python.engines.vllm_engine import (
    FEW,
    ROW_BYTES,
    ROWS,
    MakeEngine,
    file_tier,
    kvring_tier,
    namespace_of,
    number_of,
)
from tests.support.vllm_config import key_of


def test_two_tiers_store_all_and_the_first_is_asked_first(
    make_engine: MakeEngine, store_path: Path, tmp_path: Path
) -> None:
    engine = make_engine([kvring_tier(store_path), file_tier(tmp_path / "files")])
    _, files = engine.manager.secondary_tiers
    engine.put(FEW)
    engine.evict()
    paths = [Path(files.file_mapper.get_file_name(key_of(number))) for number in FEW]
    assert all(path.stat().st_size == ROW_BYTES for path in paths)
    assert engine.store.stats()["keys"] == len(FEW) + ROWS
    hits = engine.store.stats()["get_hits"]
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["get_hits"] == hits + len(FEW)
    engine.store.purge(namespace_of(engine))
    engine.evict()
    # What one of them has lost the other one has.
    with engine.request() as request:
        answers = engine.lookup(request, FEW)
        assert answers[0] == [LookupResult.RETRY] * len(FEW)
        assert answers[-1] == [LookupResult.HIT] * len(FEW)
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["get_hits"] == hits + len(FEW)


def test_two_stores_may_be_two_tiers(make_engine: MakeEngine, store_path: Path) -> None:
    paths = [store_path / name for name in ("one", "two")]
    engine = make_engine([kvring_tier(path) for path in paths], events=True)
    engine.put(FEW)
    events = engine.events()
    assert [{number_of(key) for key in event.keys} for event in events] == [set(FEW)] * 2
    values = engine.manager.get_stats().metric_sections()[1]
    assert values["vllm:kvring_chunks"] == {(str(path),): len(FEW) for path in paths}
    assert [info.get("kvring_path") for info in engine.manager.config_info()] == [
        None,
        *map(str, paths),
    ]
    engine.evict()
    engine.store.purge(namespace_of(engine))
    assert engine.found(FEW) == [True] * len(FEW)


@pytest.mark.parametrize("locality", ["LOCAL", "REMOTE"])
def test_a_request_may_leave_the_tier_out(
    make_engine: MakeEngine, store_path: Path, locality: str
) -> None:
    engine = make_engine([kvring_tier(store_path, locality=locality)])
    engine.put(FEW)
    engine.evict()
    for medium, place in (
        (Medium.CPU, None),
        (None, Locality.LOCAL),
        (None, Locality.REMOTE),
        (Medium.STORAGE, Locality[locality]),
    ):
        only = TierFilter(matchers=(TierMatcher(medium, place),))
        is_meant = medium is not Medium.CPU and (place is None or place.name == locality)
        with engine.request(load_tier_filter=only) as request:
            answer = engine.lookup(request, FEW)[-1][0]
        assert answer is (LookupResult.HIT if is_meant else LookupResult.MISS)
        engine.evict()


def test_vllm_drops_stores_when_the_tier_is_too_slow(
    make_engine: MakeEngine, store_path: Path
) -> None:
    measure = {
        "backpressure_cls": "EMABackpressureDetector",
        "policy_cls": "DropStorePolicy",
        "high_water_s": 1e-12,
        "low_water_s": 1e-13,
        "warmup_completions": 1,
    }
    engine = make_engine([kvring_tier(store_path)], backpressure=measure)
    assert isinstance(engine.tier.bp_detector.policy, DropStorePolicy)
    engine.put(range(200))
    assert 0 < engine.store.stats()["set_stored"] < 100
    with engine.manager.lock:
        values = engine.manager.get_stats().metric_sections()[1]
    dropped = values[TieringOffloadingMetrics.BACKPRESSURE_BLOCKS_DROPPED]
    assert dropped == {("1:KvringTier",): 200 - engine.store.stats()["set_stored"]}
