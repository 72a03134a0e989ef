"""Pages of several pools, as hybrid models have them."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

from tests.python.engines.sglang_host import (
    BOTH_INTERFACES,
    KEYS,
    KINDS,
    MISSING,
    PAGE_TOKENS,
    OpenRank,
    Pages,
    device_pool,
    kvring_options,
    page_keys,
)
from tests.support.sglang_pools import host_pool, make_backend, storage_config


class Twins:
    """SGLang's backend of files and kvring over the same host pools."""

    def __init__(self, store_path: Path, files: Path, kind: str, v1: bool) -> None:
        """Make three pools, and both backends."""
        device = device_pool(kind)
        self.pools = {PoolName(name): Pages(host_pool(device)) for name in ("kv", "swa", "indexer")}
        # The pages of one key have other bytes in each pool.
        self._versions = {name: number for number, name in enumerate(self.pools)}
        config = storage_config(kvring_options(store_path, v1=v1), kind)
        kv, *more = self.pools.items()
        others = {str(name): pages.pool for name, pages in more}
        self.kvring = make_backend("dynamic", config, kv[1].pool, **others)
        file_config = storage_config({"file_storage_path": str(files)}, kind)
        self.file = HiCacheFile(file_config)
        self.file.register_mem_pool_host(kv[1].pool)
        for name, pages in self.pools.items():
            self.file.register_mem_host_pool_v2(pages.pool, name)

    def transfer(self, name: PoolName, keys: list[str]) -> Any:
        """Name pages of a pool, in its first rows."""
        return PoolTransfer(name, host_indices=self.pools[name].rows(range(len(keys))), keys=keys)

    def store(self, stored: dict[PoolName, list[str]]) -> None:
        """Store pages in both."""
        transfers = [self.transfer(name, keys) for name, keys in stored.items() if keys]
        for one in transfers:
            self.pools[one.name].fill(one.host_indices, one.keys, self._versions[one.name])
        for backend in (self.kvring, self.file):
            results = backend.batch_set_v2(transfers)
            assert results == {one.name: [True] * len(one.keys) for one in transfers}

    def load(self, backend: Any, transfers: list[Any]) -> tuple[Any, list[list[bool]]]:
        """Load pages; return what the backend says, and which pages have the right bytes."""
        for one in transfers:
            self.pools[one.name].wipe(one.host_indices)
        results = backend.batch_get_v2(transfers)
        right = [
            self.pools[one.name].hold(one.host_indices, one.keys, self._versions[one.name])
            for one in transfers
        ]
        return results, right


@pytest.fixture(params=[("mha", True), ("mha", False), ("mla", True)], ids=str)
def twins(request: pytest.FixtureRequest, store_path: Path, tmp_path: Path) -> Iterator[Twins]:
    """Both backends, empty."""
    files = tmp_path / "files"
    twins = Twins(store_path, files, *request.param)
    yield twins
    twins.kvring.close()
    shutil.rmtree(files)


def test_whole_groups_of_a_second_form_are_told_and_gate_no_hit(twins: Twins) -> None:
    keys, kv, form = KEYS[:12], PoolName.KV, PoolName("indexer")
    groups = page_keys(6, "groups")
    # Two of its pages stand for four of KV, so these have one whole group and a half.
    twins.store({kv: keys[:10], form: groups[:3]})
    asked = PoolTransfer(
        form, keys=groups, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=4, group_pages=2
    )
    found = twins.kvring.batch_exists_v2(keys, [asked])
    assert found.extra_pool_hit_pages == {kv: 10, form: 4}
    assert found.kv_hit_pages == 10
    twins.store({form: groups})
    assert twins.kvring.batch_exists_v2(keys, [asked]).extra_pool_hit_pages[form] == 12
    asked.keys = None
    assert twins.kvring.batch_exists_v2(keys, [asked]).extra_pool_hit_pages == {kv: 10}


def test_prefixes_are_found_as_sglangs_own_backend_finds_them(twins: Twins) -> None:
    choose = random.Random(7)
    policies = [PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES]
    seen = set()
    for trial in range(50):
        keys = page_keys(choose.randint(1, 9), trial)
        odds = {name: choose.choice([0.5, 0.8, 0.95, 1.0]) for name in twins.pools}
        odds[PoolName.KV] = choose.choice([0.6, 0.95, 1.0])
        stored = {
            name: [key for key in keys if choose.random() < odds[name]] for name in twins.pools
        }
        twins.store(stored)
        transfers = [
            PoolTransfer(
                name,
                keys=choose.choice([None, [], *[["key"] * count for count in (1, 2, 3, 12)]]),
                hit_policy=choose.choice(policies),
            )
            for name in choose.sample([PoolName("swa"), PoolName("indexer")], choose.randint(0, 2))
        ]
        found = twins.kvring.batch_exists_v2(keys, transfers or None)
        expected = twins.file.batch_exists_v2(keys, transfers or None)
        assert found == expected, (stored, transfers)
        assert twins.kvring.batch_exists(keys) == twins.file.batch_exists(keys)
        seen.add(found.kv_hit_pages)
    assert len(seen) > 5


def test_a_transfer_of_another_length_is_a_miss_and_others_go_on(twins: Twins) -> None:
    twins.store(dict.fromkeys(twins.pools, KEYS[:4]))
    wrong = twins.transfer(PoolName.SWA, KEYS[:4])
    wrong.host_indices = wrong.host_indices[:-1]
    nowhere = PoolTransfer(PoolName.INDEXER, host_indices=None, keys=KEYS[:2])
    right = twins.transfer(PoolName.KV, KEYS[:4])
    expected = {"swa": [False] * 4, "indexer": [False] * 2, "kv": [True] * 4}
    transfers = [wrong, nowhere, right]
    for backend in (twins.file, twins.kvring):
        assert backend.batch_get_v2(transfers) == expected
        assert backend.batch_set_v2(transfers) == expected


@pytest.mark.parametrize("draft", KINDS)
def test_all_ranks_of_an_mla_model_load_the_draft_of_the_first(
    store_path: Path, tmp_path: Path, draft: str
) -> None:
    """SGLang has the first rank alone store drafts, and its own backend serves them to all."""
    files = tmp_path / "files"
    options = [kvring_options(store_path), {"file_storage_path": str(files)}]
    pools = {
        name: Pages(host_pool(device_pool(kind)))
        for name, kind in [("kv", "mla"), ("draft", draft)]
    }
    for backend_of, extra in zip((kvring_backend, file_backend), options, strict=True):
        ranks = [
            backend_of(storage_config(extra, "mla", tp_rank=rank, tp_size=2), pools)
            for rank in range(2)
        ]
        transfers = []
        for version, (name, pages) in enumerate(pools.items()):
            rows = pages.rows(range(4))
            pages.fill(rows, KEYS[:4], version)
            transfers.append(PoolTransfer(PoolName(name), host_indices=rows, keys=KEYS[:4]))
        expected = {"kv": [True] * 4, "draft": [True] * 4}
        assert ranks[0].batch_set_v2(transfers) == expected
        for rank in ranks:
            assert rank.batch_exists_v2(KEYS[:4], transfers[1:]).kv_hit_pages == 4
            for pages, one in zip(pools.values(), transfers, strict=True):
                pages.wipe(one.host_indices)
            assert rank.batch_get_v2(transfers) == expected
            for version, (pages, one) in enumerate(zip(pools.values(), transfers, strict=True)):
                assert pages.hold(one.host_indices, KEYS[:4], version) == [True] * 4
        for rank in ranks:
            getattr(rank, "close", lambda: None)()
    shutil.rmtree(files)


def kvring_backend(config: Any, pools: dict[str, Pages]) -> Any:
    return make_backend("dynamic", config, pools["kv"].pool, draft=pools["draft"].pool)


def file_backend(config: Any, pools: dict[str, Pages]) -> Any:
    backend = HiCacheFile(config)
    backend.register_mem_pool_host(pools["kv"].pool)
    for name, pages in pools.items():
        backend.register_mem_host_pool_v2(pages.pool, PoolName(name))
    return backend


@BOTH_INTERFACES
@pytest.mark.parametrize("tp_rank", [0, 1])
def test_a_pool_without_memory_is_always_there(
    open_rank: OpenRank, store_path: Path, tp_rank: int, v1: bool
) -> None:
    # DeepSeek V4 counts pages in one, and has their bytes in others.
    device = device_pool("mla")
    logical = LogicalHostPool(device.size, PAGE_TOKENS)
    pages = Pages(host_pool(device))
    options = kvring_options(store_path, v1=v1)
    backends = [
        make_backend(
            "dynamic",
            storage_config(options, "mla", tp_rank=rank, tp_size=2),
            logical,
            swa=pages.pool,
        )
        for rank in (0, 1)
    ]
    try:
        keys, rows = KEYS[:3], pages.rows(range(3))
        pages.fill(rows, keys)
        swa = PoolTransfer(PoolName.SWA, host_indices=rows, keys=keys)
        assert backends[0].batch_set_v2([swa]) == {"swa": [True] * 3}
        assert backends[0].batch_set_v1(keys, rows) == [True] * 3
        backend = backends[tp_rank]
        result = backend.batch_exists_v2([*keys, *MISSING], [swa])
        assert (result.kv_hit_pages, result.extra_pool_hit_pages["swa"]) == (3, 3)
        assert backend.batch_get_v1(keys, rows) == [True] * 3
        dummies = [logical.get_dummy_flat_data_page() for _ in keys]
        assert len([one for one in backend.batch_get(keys, dummies) if one is not None]) == 3
        pages.wipe(rows)
        assert backend.batch_get_v2([swa]) == {"swa": [True] * 3}
        assert pages.hold(rows, keys) == [True] * 3
    finally:
        for backend in backends:
            backend.close()


def test_a_state_without_one_of_its_parts_is_absent(open_rank: OpenRank) -> None:
    rank = open_rank(has_mamba=True)
    assert rank.states is not None
    parts = rank.form("mamba").parts
    assert parts > 1
    keys = KEYS[: parts + 1]
    states = torch.arange(len(keys))
    rank.states.fill(states, keys)
    rank.store(keys)
    transfer = PoolTransfer(
        PoolName.MAMBA,
        host_indices=states,
        keys=keys,
        hit_policy=PoolHitPolicy.TRAILING_PAGES,
    )
    assert rank.backend.batch_set_v2([transfer]) == {"mamba": [True] * len(keys)}
    for part in range(parts):
        rank.delete_part(keys[part], part, "mamba")
    rank.states.wipe(states)
    assert rank.backend.batch_get_v2([transfer]) == {"mamba": [False] * parts + [True]}
    assert rank.states.hold(states, keys)[-1]
    last = PoolTransfer(PoolName.MAMBA, keys=keys[-1:], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert rank.backend.batch_exists_v2(keys, [last]).restorable_prefix_pages == [len(keys)]
    # The KV of all these pages is there.
    assert rank.backend.batch_exists(keys) == len(keys)
