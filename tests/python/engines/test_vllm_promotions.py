"""Under vLLM's real manager: what left the primary tier comes back, or is computed."""

from pathlib import Path

import pytest

from tests.python.conftest import MIB

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tests.python.engines.vllm_engine import (
    FEW,
    ROW_BYTES,
    ROWS,
    MakeEngine,
    kvring_tier,
    namespace_of,
)
from tests.support.vllm_config import key_of


def test_what_left_the_primary_tier_comes_back(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with engine.request() as request:
        prepared = engine.offer(request, FEW)
        assert prepared.keys_to_store == [key_of(number) for number in FEW]
        engine.settle()
    engine.evict()
    with engine.request() as request:
        answers = engine.lookup(request, FEW)
        # vLLM's own file tier answers RETRY here, and knows it a step later.
        assert answers[0] == [LookupResult.HIT_PENDING] * len(FEW)
        assert answers[-1] == [LookupResult.HIT] * len(FEW)
        assert not any(LookupResult.RETRY in step for step in answers)
        sources = {engine.manager.get_load_source(key_of(number), request) for number in FEW}
        assert sources == {CacheHitSource.DISK}
        assert engine.lookup(request, [9999]) == [[LookupResult.MISS]]
    assert engine.found([*FEW, 9999]) == [True] * len(FEW) + [False]
    engine.settle()
    assert not engine.manager._req_state
    assert not engine.manager._jobs


def test_a_chunk_that_goes_before_it_is_loaded_is_a_miss(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.put(FEW)
    engine.evict()
    with engine.request() as request, engine.request() as other:
        with engine.manager.lock:
            answers = [engine.manager.lookup(key_of(number), request) for number in FEW]
        assert answers == [LookupResult.HIT_PENDING] * len(FEW)
        deleted = engine.store.purge(namespace_of(engine))["keys"]
        assert deleted == len(FEW) + ROWS
        # It does not ask again and again, and computes.
        assert engine.lookup(request, FEW)[-1] == [LookupResult.MISS] * len(FEW)
        engine.offer(other, FEW)
        engine.settle()
        assert engine.lookup(other, FEW) == [[LookupResult.HIT] * len(FEW)]
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)


def test_a_reset_waits_for_what_is_under_way(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine([kvring_tier(store_path)], rows=24, row_bytes=MIB)
    engine.put(range(8))
    engine.evict()
    with engine.request() as request:
        with engine.manager.lock:
            answers = [engine.manager.lookup(key_of(number), request) for number in range(8)]
        assert answers == [LookupResult.HIT_PENDING] * 8
        engine.offer(request, range(100, 112))
        engine.end_step()
        with engine.manager.lock:
            assert engine.manager._jobs
            engine.manager.reset_cache()
            assert not engine.manager._jobs
        # Nothing moves any more: vLLM gives this memory to others.
        poison = b"\xa5" * MIB
        for row in range(engine.rows):
            engine._row(row)[:] = poison
        assert engine.store.stats()["in_flight"] == 0
        engine.settle()
        assert all(engine._row(row) == poison for row in range(engine.rows))
        assert engine.lookup(request, [0, 100]) == [[LookupResult.MISS] * 2]
        with engine.manager.lock:
            engine.manager.on_reset_flushed()
        assert engine.lookup(request, [0, 100])[0] == [LookupResult.HIT_PENDING] * 2
    assert engine.found([*range(8), *range(100, 112)]) == [True] * 20


def test_the_primary_tiers_memory_is_registered(make_engine: MakeEngine) -> None:
    engine = make_engine()
    if not engine.store.stats()["engine"].startswith("io_uring"):
        pytest.skip("only io_uring has fixed buffers")
    assert engine.store.stats()["registered_bytes"] >= ROWS * ROW_BYTES
    engine.put(FEW)
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)
    assert engine.store.stats()["transfers_fixed"] > 0
    assert engine.store.stats()["bounced_bytes"] == 0
