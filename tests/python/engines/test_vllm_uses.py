"""What vLLM uses above kvring, and never asks it for, counts as used."""

from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from tests.python.conftest import MIB
from tests.python.engines.vllm_engine import Engine, kvring_tier, make_config
from tests.support.vllm_config import key_of

CAPACITY_BYTES = 32 * MIB
HOT = range(8)
COLD = range(100, 108)


def use_above(engine: Engine, numbers: Iterable[int]) -> None:
    """Have a request that finds all of its chunks above; the scheduler notes its keys so."""
    with engine.request() as request:
        for position, number in enumerate(numbers):
            request.set_offload_key_position(key_of(number), 16 * (position + 1))
    engine.settle()


@pytest.mark.parametrize("eviction", ["adaptive", "lru", "lfu"])
def test_what_is_hot_above_stays(store_path: Path, eviction: str) -> None:
    tier = kvring_tier(store_path, CAPACITY_BYTES, eviction=eviction)
    with Engine(make_config([tier])) as engine:
        engine.put(HOT)
        engine.put(COLD)
        filler = 1000
        # Three times what fits.
        for _ in range(24):
            use_above(engine, HOT)
            engine.put(range(filler, filler + 64))
            filler += 64
        assert engine.store.stats()["evicted"] > 0
        engine.evict()
        assert engine.found(COLD) == [False] * len(COLD)
        assert engine.found(HOT) == [True] * len(HOT)


def test_a_step_counts_some_of_many_uses(store_path: Path) -> None:
    with Engine(make_config([kvring_tier(store_path)])) as engine:
        with engine.request() as request:
            for number in range(3000):
                request.set_offload_key_position(key_of(number), 16 * (number + 1))
        left = [len(engine.tier._used)]
        while left[-1]:
            engine.end_step()
            left.append(len(engine.tier._used))
        assert left == [3000, 1976, 952, 0]


def test_where_vllm_tells_uses_itself_they_are_not_counted_twice(store_path: Path) -> None:
    with Engine(make_config([kvring_tier(store_path)])) as engine:
        engine.put([1])
        with engine.request() as request:
            request.set_offload_key_position(key_of(1), 16)
            engine.manager.touch([key_of(1)], request)
        engine.settle()
        assert uses_of(engine) == [1]


def uses_of(engine: Engine) -> list[int]:
    """Return how often each chunk was used, as the closed store has it."""
    from kvring._native import StoredChunks

    path = Path(engine.store.stats()["paths"][0]["path"])
    engine.tier.shutdown()
    return [chunk["uses"] for chunk in StoredChunks(path)]


def test_what_a_request_stores_or_loads_itself_counts_once(store_path: Path) -> None:
    with Engine(make_config([kvring_tier(store_path)])) as engine:
        with engine.request() as request:
            request.set_offload_key_position(key_of(1), 16)
            engine.offer(request, [1])
            engine.settle()
        assert not engine.tier._used
        use_above(engine, [1])
        assert not engine.tier._used
        (chunk,) = uses_of(engine)
        assert chunk == 1
