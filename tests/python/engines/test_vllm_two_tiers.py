"""kvring with `promote` in front of a tier that nodes share: `fs` under vLLM's real manager."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.python.conftest import KIB

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.base import LookupResult

from tests.python.engines.vllm_engine import (
    FEW,
    ROWS,
    Engine,
    MakeEngine,
    content_of,
    file_tier,
    kvring_tier,
    namespace_of,
)
from tests.support.vllm_config import key_of

MakeNode = Callable[..., Engine]


@pytest.fixture
def make_node(make_engine: MakeEngine, store_path: Path, tmp_path: Path) -> MakeNode:
    """Make nodes: each has a kvring of its own, and behind it the directory of all."""

    def make(name: str, *, sizes: Any = None, **options: Any) -> Engine:
        own = kvring_tier(store_path / name, **options)
        return make_engine([own, file_tier(tmp_path / "shared")], **(sizes or {}))

    return make


def own(engine: Engine, numbers: Any = FEW) -> list[bool]:
    """Say of each chunk whether the node's kvring has it."""
    stored: list[bool] = engine.tier._tasks.exists(
        engine.tier._prefix, [key_of(number).hex() for number in numbers]
    )
    return stored


def sets(engine: Engine) -> dict[str, int]:
    """Return what became of all SETs, without the counts that are zero."""
    stats = engine.store.stats()
    names = (
        "set_stored",
        "set_unchanged",
        "set_coalesced",
        "set_failed",
        "set_rejected_queue_full",
    )
    return {name: stats[name] for name in names if stats[name]}


def promoted(engine: Engine) -> int:
    """Return what the metrics tell."""
    engine.tier._metrics._next_s = 0.0
    values = engine.tier.get_stats().metric_sections()[1]
    (count,) = values["vllm:kvring_promoted_chunks"].values()
    return int(count)


def load(engine: Engine, numbers: Any = FEW) -> None:
    """Have a request that loads chunks, which some tier has, and goes on for some steps."""
    with engine.request() as request:
        assert engine.lookup(request, numbers)[-1] == [LookupResult.HIT] * len(numbers)
        contents = engine.load(request, numbers)
        assert contents == [content_of(number, engine.row_bytes) for number in numbers]
        engine.settle()


def pinned(engine: Engine) -> int:
    """Return how many chunks of the primary tier cannot be evicted."""
    primary = engine.manager.primary_tier
    used = primary._num_allocated_chunks - len(primary._free_list)
    return int(used - primary._num_evictable_cache_chunks)


def test_what_another_node_stored_is_promoted_once(make_node: MakeNode) -> None:
    make_node("a").put(FEW)
    engine = make_node("b", promote=True)
    assert own(engine) == [False] * len(FEW)
    load(engine)
    assert own(engine) == [True] * len(FEW)
    assert sets(engine) == {"set_stored": len(FEW)}
    assert promoted(engine) == len(FEW)
    assert pinned(engine) == 0
    assert not engine.manager._jobs
    assert not engine.tier._wanted
    # From now on they come from this node's drive.
    engine.evict()
    _, files = engine.manager.secondary_tiers
    for number in FEW:
        Path(files.file_mapper.get_file_name(key_of(number))).unlink()
    load(engine)
    assert engine.store.stats()["get_hits"] == len(FEW)
    assert sets(engine) == {"set_stored": len(FEW) + ROWS}
    assert promoted(engine) == 0


def test_what_admission_refuses_is_not_promoted(make_node: MakeNode) -> None:
    make_node("a").put(FEW)
    engine = make_node("b", promote=True, admit="second_use")
    for is_kept in (False, True):
        load(engine)
        assert own(engine) == [is_kept] * len(FEW)
        assert promoted(engine) == is_kept * len(FEW)
        engine.evict()


@pytest.mark.parametrize("options", [{}, {"promote": False}], ids=["default", "false"])
def test_without_promote_vllm_gives_kvring_nothing(
    make_node: MakeNode, options: dict[str, Any]
) -> None:
    make_node("a").put(FEW)
    engine = make_node("b", **options)
    load(engine)
    assert own(engine) == [False] * len(FEW)
    assert sets(engine) == {}
    assert promoted(engine) == 0


def test_a_prefix_in_all_tiers_is_stored_once(make_node: MakeNode) -> None:
    """Chunks 0 to 3 are in kvring, 4 to 7 in the shared tier alone, the GPU computes 8 to 11."""
    make_node("a").put(range(4, 8))
    engine = make_node("b", promote=True)
    engine.put(range(4))
    engine.evict()
    before = engine.store.stats()["set_stored"]
    with engine.request() as request:
        answers = engine.lookup(request, range(12))
        # What kvring has is on its way at once; the request waits for the others.
        assert answers[0] == [LookupResult.HIT_PENDING] * 4 + [LookupResult.RETRY] * 8
        assert answers[-1] == [LookupResult.HIT] * 8 + [LookupResult.MISS] * 4
        engine.offer(request, range(8, 12))
        engine.settle()
    assert own(engine, range(12)) == [True] * 12
    assert sets(engine) == {"set_stored": before + 8}
    assert promoted(engine) == 4


def test_a_damaged_chunk_comes_from_the_shared_tier_and_stays(make_node: MakeNode) -> None:
    engine = make_node("a", promote=True)
    engine.put(FEW)
    engine.evict()
    with engine.request() as request:
        with engine.manager.lock:
            for number in FEW:
                engine.manager.lookup(key_of(number), request)
        # kvring has said that it has them, and cannot load them.
        engine.store.purge(namespace_of(engine))
        assert engine.lookup(request, FEW)[-1] == [LookupResult.HIT] * len(FEW)
        engine.settle()
    assert own(engine) == [True] * len(FEW)
    assert promoted(engine) == len(FEW)


def test_a_request_that_ends_wants_nothing(make_node: MakeNode) -> None:
    engine = make_node("a", promote=True)
    wanted = engine.tier._wanted
    with engine.request() as one:
        engine.lookup(one, range(8))
        with engine.request() as two:
            engine.lookup(two, range(4, 12))
            assert len(wanted) == 12
        # Whoever asked last has a key.
        assert len(wanted) == 4
    assert len(wanted) == 0
    assert wanted._requests == {}
    # Nobody would tell of the end of one that kvring was never told of.
    engine.tier.lookup(key_of(0), type(one)("unknown"))
    assert len(wanted) == 0
    engine.settle()
    assert engine.manager._metrics._request_states == {}


def test_wanted_keys_are_bounded(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvring.vllm.promotion._MOST_WANTED", 10)
    engine = make_node("a", promote=True)
    wanted = engine.tier._wanted
    with engine.request() as request:
        for number in range(100):
            assert engine.tier.lookup(key_of(number), request) is LookupResult.MISS
        assert len(wanted) == 10
        assert set(wanted._wanted) == {key_of(number) for number in range(90, 100)}
        (of_request,) = wanted._requests.values()
        assert of_request.keys == set(wanted._wanted)


def test_a_step_asks_the_primary_tier_for_some_and_the_next_for_others(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvring.vllm.promotion._MOST_MISSES", 3)
    make_node("a").put([9])
    engine = make_node("b", promote=True)
    lookups: dict[Any, list[Any]] = {}

    def watch(tier: Any) -> None:
        real = tier.lookup

        def lookup(key: Any, context: Any) -> Any:
            lookups[tier].append(key)
            return real(key, context)

        lookups[tier] = []
        monkeypatch.setattr(tier, "lookup", lookup)

    primary, others = engine.manager.primary_tier, engine.manager.secondary_tiers
    with engine.request() as request:
        engine.lookup(request, range(10))
        engine.settle()
        assert own(engine, [9]) == [True]
        assert len(engine.tier._wanted) == 9
        for tier in (primary, *others):
            watch(tier)
        for step in range(1, 4):
            engine.end_step()
            assert len(lookups[primary]) == 3 * step
        assert set(lookups[primary]) == {key_of(number) for number in range(9)}
        assert not any(lookups[tier] for tier in others)
        # None of these is a lookup of a request, which vLLM counts.
        values = engine.manager.get_stats().metric_sections()[1]
        queries = values["vllm:kv_offload_tiering_chunk_queries"]
        assert queries == {("0:primary",): 10, ("1:KvringTier",): 10, ("2:fs",): 10}
        # What vLLM has just missed is asked for a step later.
        lookups[primary].clear()
        with engine.manager.lock:
            for number in range(9):
                engine.manager.lookup(key_of(number), request)
        engine.end_step()
        assert len(lookups[primary]) == 9
        engine.end_step()
        assert len(lookups[primary]) == 9 + 3


def test_a_full_queue_promotes_nothing_until_it_has_room(make_node: MakeNode) -> None:
    sizes = {"rows": 32, "row_bytes": 256 * KIB}
    make_node("a", sizes=sizes).put(FEW)
    engine = make_node("b", sizes=sizes, promote=True, set_queue_bytes="2MiB")
    with engine.request() as request:
        # Half of it is for what the GPU stores.
        engine.tier._storing_rows = 4
        engine.lookup(request, FEW)
        engine.settle()
        assert own(engine) == [False] * len(FEW)
        assert len(engine.tier._wanted) == len(FEW)
        engine.tier._storing_rows = 2
        engine.end_step()
        assert len(engine.tier._wanted) == len(FEW) - 2
        engine.settle()
        engine.tier._storing_rows = 0
        engine.settle()
        engine.settle()
    assert own(engine) == [True] * len(FEW)
    assert sets(engine) == {"set_stored": len(FEW)}


def test_a_tier_under_pressure_promotes_nothing(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("a").put(FEW)
    measure = {"backpressure_cls": "EMABackpressureDetector", "high_water_s": 1e9}
    engine = make_node("b", promote=True, backpressure=measure)
    with engine.request() as request:
        with monkeypatch.context() as patch:
            patch.setattr(engine.tier.bp_detector, "is_under_pressure", lambda: True)
            engine.lookup(request, FEW)
            engine.settle()
            assert own(engine) == [False] * len(FEW)
        engine.settle()
        assert own(engine) == [True] * len(FEW)


def test_a_promotion_that_fails_lets_go_of_the_primary_tier(make_node: MakeNode) -> None:
    make_node("a").put(FEW)
    engine = make_node("b", promote=True)
    # As if the primary tier had named rows that it does not have.
    rows, engine.tier._rows.count = engine.tier._rows.count, 0
    with engine.request() as request:
        assert engine.lookup(request, FEW)[-1] == [LookupResult.HIT] * len(FEW)
        engine.settle()
    engine.tier._rows.count = rows
    assert pinned(engine) == 0
    assert not engine.manager._jobs
    assert not engine.tier._promotions
    assert promoted(engine) == 0
    engine.evict()
    load(engine)
    assert promoted(engine) == len(FEW)


def test_after_another_epoch_nothing_is_promoted(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The shared tier gives KV of the weights from before, and of those in between later."""
    make_node("a").put(FEW)
    engine = make_node("b", promote=True)
    with caplog.at_level(logging.WARNING, logger="kvring"):
        for name in ("step-1", "step-2", ""):
            engine.store.set_epoch(name)
            load(engine)
            assert own(engine) == [False] * len(FEW)
            assert len(engine.tier._wanted) == 0
            engine.evict()
    told = [record for record in caplog.records if "nothing is promoted" in record.message]
    assert len(told) == 1
    assert promoted(engine) == 0


def test_what_is_wanted_when_an_epoch_begins_is_not_promoted(make_node: MakeNode) -> None:
    make_node("a").put(FEW)
    engine = make_node("b", promote=True)
    with engine.request() as request:
        # The shared tier answers in a later step.
        for number in FEW:
            with engine.manager.lock:
                engine.manager.lookup(key_of(number), request)
        assert len(engine.tier._wanted) == len(FEW)
        engine.store.set_epoch("step-1")
        engine.settle()
        assert len(engine.tier._wanted) == 0
    load(engine)
    assert own(engine) == [False] * len(FEW)


@pytest.mark.parametrize("promote", ["yes", "true", 1, None], ids=repr)
def test_a_wrong_value_is_named(make_node: MakeNode, store_path: Path, promote: Any) -> None:
    with pytest.raises(ValueError, match="secondary_tiers") as raised:
        make_node("a", promote=promote)
    assert f"'promote' = {promote!r} is not valid; it takes true or false" in str(raised.value)
    assert not (store_path / "a").exists()
