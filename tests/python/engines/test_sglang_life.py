"""A backend from when it knows its pools until after its close."""

import random
import threading
import time
from collections.abc import Callable

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from tests.python.conftest import HANG_DEADLINE_S
from tests.python.engines.sglang_host import BOTH_INTERFACES, KEYS, KINDS, OpenRank, page_keys


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


@BOTH_INTERFACES
def test_three_threads_work_at_the_same_time(open_rank: OpenRank, v1: bool) -> None:
    rank = open_rank(v1=v1, shape={"width": 200})
    keys = page_keys(60, "threads")
    stored = 0
    failures: list[BaseException] = []
    done = threading.Event()

    def store() -> None:
        nonlocal stored
        for first in range(0, len(keys), 5):
            assert rank.store(keys[first : first + 5], first_row=0) == [True] * 5
            stored = max(stored, first + 5)
            time.sleep(0.005)

    def load() -> None:
        choose = random.Random(1)
        while not done.is_set():
            before = stored
            batch = choose.sample(keys, 8)
            found = rank.load(batch, first_row=8)
            assert None not in found, "wrong bytes"
            assert all(ok for key, ok in zip(batch, found, strict=True) if key in keys[:before])

    def ask() -> None:
        while not done.is_set():
            before = stored
            leading = rank.backend.batch_exists(keys)
            assert before <= leading <= stored + 5
            assert rank.backend.exists(keys[0]) or not before

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (load, ask)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            store()
    finally:
        done.set()
        for thread in threads:
            thread.join(HANG_DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    if failures:
        raise failures[0]
    assert rank.load(keys[:24]) == [True] * 24
