"""A backend from when it knows its pools until after its close."""

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from tests.python.engines.sglang_host import BOTH_INTERFACES, KEYS, KINDS, OpenRank


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_all_pools_is_registered(open_rank: OpenRank, kind: str) -> None:
    rank = open_rank(kind, has_mamba=True)
    assert rank.states is not None
    registered = rank.connector.stats()["registered_bytes"]
    wanted = rank.pages.pool.page_num * rank.pages.page_bytes
    wanted += rank.states.pool.size * rank.states.page_bytes
    assert registered >= wanted
    # A pool that is told of twice is registered once.
    rank.backend.register_mem_pool_host(rank.pages.pool)
    assert rank.connector.stats()["registered_bytes"] == registered


def test_the_figures_are_since_the_last_time(open_rank: OpenRank) -> None:
    rank = open_rank(enable_storage_metrics=True)
    rank.store(KEYS)
    rank.store(KEYS[:2])
    rank.load(KEYS[:3])
    figures = rank.backend.get_stats()
    assert type(figures).__name__ == "StorageMetrics"
    assert figures.backup_pgs == [len(KEYS), 2]
    assert figures.prefetch_pgs == [3]
    rates = [*figures.backup_bandwidth, *figures.prefetch_bandwidth]
    assert len(rates) == 3
    assert all(0 < rate < 1000 for rate in rates)
    again = rank.backend.get_stats()
    assert (again.backup_pgs, again.prefetch_pgs, again.backup_bandwidth) == ([], [], [])


@BOTH_INTERFACES
@pytest.mark.parametrize("ranks", [(0, 1), (0, 2), (1, 2)], ids=["alone", "owner", "reader"])
def test_all_is_a_miss_after_the_close(
    open_rank: OpenRank, ranks: tuple[int, int], v1: bool
) -> None:
    rank = open_rank("mla", v1=v1, has_mamba=True, tp_rank=ranks[0], tp_size=ranks[1])
    assert rank.states is not None
    rank.store(KEYS)
    rank.close()
    rank.close()
    backend, page = rank.backend, torch.zeros(rank.pages.page_bytes, dtype=torch.uint8)
    assert rank.load(KEYS) == [False] * len(KEYS)
    assert rank.store(KEYS) == [False] * len(KEYS)
    assert backend.batch_exists(KEYS) == 0
    assert backend.exists(KEYS[0]) is False
    assert backend.get(KEYS[0], page) is None
    assert backend.set(KEYS[0], page) is False
    assert backend.batch_get(KEYS[:1], [page]) == [None]
    assert backend.batch_set(KEYS[:1], [page]) is False
    state = PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(2), keys=KEYS[:2])
    assert backend.batch_set_v2([state]) == {"mamba": [False] * 2}
    assert backend.batch_get_v2([state]) == {"mamba": [False] * 2}
    assert backend.batch_exists_v2(KEYS, [state]).kv_hit_pages == 0
    assert backend.get_stats() is None
