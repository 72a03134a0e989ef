"""kvring's backend as SGLang's controller calls it: each call, namespaces, ranks and options."""

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

import kvring
from kvring.sglang import HiCacheKvring
from tests.python.conftest import HANG_DEADLINE_S, MIB, bare_loop_device
from tests.python.engines.sglang_host import (
    KINDS,
    LAYOUTS,
    MODEL,
    PAGE_TOKENS,
    Pages,
    Rank,
    content_of,
    device_pool,
    host_pool,
    kvring_backend,
    kvring_options,
    page_keys,
    storage_config,
)

WHERE = "--hicache-storage-backend-extra-config"
KEYS = page_keys(12)
MISSING = page_keys(4, "missing")
BOTH_INTERFACES = pytest.mark.parametrize("v1", [True, False], ids=["v1", "copies"])

OpenRank = Callable[..., Rank]


@pytest.fixture
def open_rank(store_path: Path) -> Iterator[OpenRank]:
    """Open ranks of one model in the store of the test; they are closed at its end."""
    with ExitStack() as stack:

        def build(*shape: str, path: Path = store_path, **more: Any) -> Rank:
            rank = Rank(path, *shape, **more)
            stack.callback(rank.close)
            return rank

        yield build


# --- pages of one pool ---


@BOTH_INTERFACES
@pytest.mark.parametrize("width", [8, 513])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_that_were_stored_are_loaded(
    open_rank: OpenRank, kind: str, layout: str, width: int, v1: bool
) -> None:
    rank = open_rank(kind, layout, v1=v1, shape={"width": width})
    assert rank.backend.batch_exists(KEYS) == 0
    assert rank.load(KEYS) == [False] * len(KEYS)
    assert rank.store(KEYS) == [True] * len(KEYS)
    assert rank.backend.batch_exists([*KEYS, *MISSING]) == len(KEYS)
    assert rank.load(KEYS, first_row=7) == [True] * len(KEYS)
    mixed = [KEYS[5], MISSING[0], KEYS[0], MISSING[1], KEYS[11]]
    assert rank.load(mixed) == [True, False, True, False, True]
    assert rank.backend.batch_exists(mixed) == 1
    assert rank.backend.batch_exists(MISSING) == 0
    # Rows that are not beside each other.
    rows = rank.pages.rows([31, 2, 17])
    rank.pages.wipe(rows)
    assert rank.backend.batch_get_v1(KEYS[:3], rows) == [True] * 3
    assert rank.pages.hold(rows, KEYS[:3]) == [True] * 3


def test_no_other_pages_are_written_to(open_rank: OpenRank) -> None:
    for kind, layout in itertools.product(KINDS, LAYOUTS):
        rank = open_rank(kind, layout, model_name=f"{kind}-{layout}")
        rank.store(KEYS[:4])
        everything = rank.pages.rows(range(rank.pages.pool.page_num))
        rank.pages.fill(everything, page_keys(rank.pages.pool.page_num, "before"))
        expected = rank.pages.read(everything)
        rows = [30, 5, 6]
        assert rank.backend.batch_get_v1(KEYS[:3], rank.pages.rows(rows)) == [True] * 3
        for row, key in zip(rows, KEYS, strict=False):
            expected[row] = content_of(key, rank.pages.page_bytes)
        assert rank.pages.read(everything) == expected
        rank.close()


@BOTH_INTERFACES
def test_a_missing_page_leaves_the_pool_as_it_is(open_rank: OpenRank, v1: bool) -> None:
    rank = open_rank(v1=v1, has_mamba=True)
    assert rank.states is not None
    rank.store(KEYS[:1])
    rows, states = rank.pages.rows([3, 4, 5]), torch.arange(2)
    rank.pages.fill(rows, MISSING[:3])
    rank.states.fill(states, MISSING[:2])
    keys = [MISSING[0], KEYS[0], MISSING[2]]
    assert rank.backend.batch_get_v1(keys, rows) == [False, True, False]
    assert rank.pages.hold(rows, keys) == [True] * 3
    transfer = PoolTransfer(PoolName.MAMBA, host_indices=states, keys=MISSING[:2])
    assert rank.backend.batch_get_v2([transfer]) == {"mamba": [False] * 2}
    assert rank.states.hold(states, MISSING[:2]) == [True] * 2


@BOTH_INTERFACES
def test_nothing_is_asked_and_nothing_is_answered(open_rank: OpenRank, v1: bool) -> None:
    rank = open_rank(v1=v1, has_mamba=True)
    backend, none = rank.backend, torch.empty(0, dtype=torch.int64)
    assert backend.batch_exists([]) == 0
    assert backend.batch_get_v1([], none) == []
    assert backend.batch_set_v1([], none) == []
    assert backend.batch_get([], []) == []
    assert backend.batch_set([], []) is True
    assert backend.batch_get_v2([]) == {}
    assert backend.batch_set_v2([]) == {}
    result = backend.batch_exists_v2([])
    assert (result.kv_hit_pages, result.extra_pool_hit_pages) == (0, {})
    empty = PoolTransfer(PoolName.MAMBA, host_indices=none, keys=[])
    assert backend.batch_set_v2([empty]) == {"mamba": []}
    assert backend.batch_get_v2([empty]) == {"mamba": []}
    assert backend.batch_exists_v2(KEYS, [empty]).restorable_prefix_pages == []


@pytest.mark.parametrize(("kind", "layout"), [("mha", "page_first"), ("mha", "layer_first")])
def test_a_page_without_one_of_its_parts_is_absent(
    open_rank: OpenRank, kind: str, layout: str
) -> None:
    rank = open_rank(kind, layout)
    parts = rank.form().parts
    assert parts == {"page_first": 2, "layer_first": 6}[layout]
    keys = KEYS[: parts + 2]
    rank.store(keys)
    for part in range(parts):
        rank.delete_part(keys[part + 1], part)
    assert rank.load(keys) == [True, *[False] * parts, True]
    assert rank.backend.batch_exists(keys) == 1
    assert rank.backend.batch_exists(keys[1:]) == 0
    assert rank.backend.batch_exists(keys[-1:]) == 1
    for key in keys:
        assert rank.backend.exists(key) == (key in (keys[0], keys[-1]))
    result = rank.backend.batch_exists_v2(keys)
    assert (result.kv_hit_pages, result.restorable_prefix_pages) == (1, [1])
    # What is stored again is whole again.
    rank.store(keys)
    assert rank.load(keys) == [True] * len(keys)


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_that_are_passed_as_tensors(open_rank: OpenRank, kind: str, layout: str) -> None:
    rank = open_rank(kind, layout, v1=False)
    backend, length = rank.backend, rank.pages.page_bytes
    rows = rank.pages.rows(range(3))
    rank.pages.fill(rows, KEYS[:3])
    starts = rows[::PAGE_TOKENS]
    pages = [rank.pages.pool.get_data_page(start) for start in starts]
    assert backend.get(KEYS[0], torch.empty(length, dtype=torch.uint8)) is None
    assert backend.set(KEYS[0], pages[0]) is True
    assert backend.set(KEYS[1], target_location=pages[1]) is True
    assert backend.batch_set(KEYS[2:3], pages[2:]) is True
    assert [backend.exists(key) for key in [*KEYS[:4]]] == [True, True, True, False]
    target = torch.empty(length, dtype=torch.uint8)
    assert backend.get(KEYS[1], target) is target
    assert target.numpy().tobytes() == content_of(KEYS[1], length)
    targets = [torch.empty(length, dtype=torch.uint8) for _ in range(4)]
    loaded = backend.batch_get(KEYS[:4], targets)
    assert loaded[3] is None
    for key, target, one in zip(KEYS[:3], targets, loaded, strict=False):
        assert one is target
        assert one.numpy().tobytes() == content_of(key, length)
    # Pages of the pool's own type, as the controller passes them.
    dummies = [rank.pages.pool.get_dummy_flat_data_page() for _ in range(3)]
    for start, key, page in zip(starts, KEYS, backend.batch_get(KEYS[:3], dummies), strict=False):
        rank.pages.pool.set_from_flat_data_page(start, page)
        assert rank.pages.hold(rank.pages.rows([int(start) // PAGE_TOKENS]), [key]) == [True]
    # By whichever call it was stored.
    assert backend.batch_exists(KEYS) == 3
    assert rank.load(KEYS[:4]) == [True, True, True, False]


def test_a_tensor_of_another_length_is_a_miss(open_rank: OpenRank) -> None:
    rank = open_rank(v1=False)
    length = rank.pages.page_bytes
    rank.store(KEYS[:1])
    for other in (length - 1, length + 1, 2 * length, 1):
        assert rank.backend.get(KEYS[0], torch.empty(other, dtype=torch.uint8)) is None
    assert rank.backend.get(KEYS[0], torch.empty(length, dtype=torch.uint8)) is not None


def test_what_a_call_cannot_use_is_refused_and_harms_nothing(open_rank: OpenRank) -> None:
    rank = open_rank()
    backend, length = rank.backend, rank.pages.page_bytes
    rank.store(KEYS[:2])
    page = torch.zeros(length, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"2 pages of pool 'kv' with 4 host indices"):
        backend.batch_get_v1(KEYS[:2], rank.pages.rows([0]))
    with pytest.raises(ValueError, match=r"1 pages of pool 'kv' with 0 host indices"):
        backend.batch_set_v1(KEYS[:1], None)
    with pytest.raises(ValueError, match=r"2 keys with 1 tensors"):
        backend.batch_get(KEYS[:2], [page])
    with pytest.raises(ValueError, match=r"tensor 0 has no memory here"):
        backend.get(KEYS[0], torch.zeros(2 * length, dtype=torch.uint8)[::2])
    with pytest.raises(ValueError, match=r"tensor 1 has no memory here"):
        backend.batch_get(KEYS[:2], [page, None])
    with pytest.raises(ValueError, match="hit policy"):
        backend.batch_exists_v2(
            KEYS[:2], [PoolTransfer(PoolName.KV, hit_policy=PoolHitPolicy.BLOCK_GROUPS)]
        )
    assert rank.load(KEYS[:2]) == [True, True]


def test_a_page_that_is_stored_again_is_the_new_one(open_rank: OpenRank) -> None:
    rank = open_rank()
    for version in range(5):
        assert rank.store(KEYS, version) == [True] * len(KEYS)
        assert rank.load(KEYS, version) == [True] * len(KEYS)


def test_cleared_pages_are_gone_and_those_of_others_stay(open_rank: OpenRank) -> None:
    other = open_rank(model_name="another")
    other.store(KEYS)
    other.close()
    rank = open_rank()
    rank.store(KEYS)
    assert rank.backend.set(KEYS[0], torch.zeros(100, dtype=torch.uint8))
    assert rank.backend.clear() is True
    assert rank.backend.batch_exists(KEYS) == 0
    assert not rank.backend.exists(KEYS[0])
    assert rank.load(KEYS) == [False] * len(KEYS)
    assert rank.store(KEYS) == [True] * len(KEYS)
    rank.close()
    assert open_rank(model_name="another").load(KEYS) == [True] * len(KEYS)


def test_an_identity_stands_before_the_namespace(open_rank: OpenRank) -> None:
    other = open_rank(options={"identity": "other"})
    other.store(KEYS)
    other.close()
    rank = open_rank(options={"identity": "one"})
    assert rank.load(KEYS) == [False] * len(KEYS)
    rank.store(KEYS)
    assert rank.load(KEYS) == [True] * len(KEYS)
    names = sorted(rank.connector.usage())
    assert [name.split("#")[0] for name in names] == ["one", "other"]
    assert rank.backend.clear()
    assert rank.backend.batch_exists(KEYS) == 0
    assert list(rank.connector.usage()) == names[1:]


# --- several pools ---


class Twins:
    """SGLang's backend of files and kvring over the same host pools."""

    def __init__(self, store_path: Path, files: Path, kind: str, v1: bool) -> None:
        """Make three pools, and both backends."""
        device = device_pool(kind)
        self.pools = {
            PoolName(name): Pages(host_pool(kind, LAYOUTS[0], device))
            for name in ("kv", "swa", "indexer")
        }
        # The pages of one key have other bytes in each pool.
        self._versions = {name: number for number, name in enumerate(self.pools)}
        config = storage_config(kvring_options(store_path, v1=v1), kind)
        kv, *more = self.pools.items()
        others = {str(name): pages.pool for name, pages in more}
        self.kvring = kvring_backend(config, kv[1].pool, **others)
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


def test_prefixes_are_found_as_sglangs_own_backend_finds_them(twins: Twins) -> None:
    choose = random.Random(7)
    policies = [PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES]
    seen = set()
    for trial in range(120):
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


def test_pages_of_several_pools_are_loaded_as_by_sglangs_own_backend(twins: Twins) -> None:
    choose = random.Random(8)
    for trial in range(30):
        keys = page_keys(8, trial)
        stored = {name: [key for key in keys if choose.random() < 0.8] for name in twins.pools}
        twins.store(stored)
        names = choose.sample(list(twins.pools), choose.randint(1, 3))
        transfers = [twins.transfer(name, choose.sample(keys, 6)) for name in names]
        found = twins.load(twins.kvring, transfers)
        assert found == twins.load(twins.file, transfers)
        for transfer, right in zip(transfers, found[1], strict=True):
            assert right == [key in stored[transfer.name] for key in transfer.keys]


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


@BOTH_INTERFACES
@pytest.mark.parametrize("tp_rank", [0, 1])
def test_a_pool_without_memory_is_always_there(
    open_rank: OpenRank, store_path: Path, tp_rank: int, v1: bool
) -> None:
    # DeepSeek V4 counts pages in one, and has their bytes in others.
    device = device_pool("mla")
    logical = LogicalHostPool(device.size, PAGE_TOKENS)
    pages = Pages(host_pool("mla", "page_first", device))
    options = kvring_options(store_path, v1=v1)
    backends = [
        kvring_backend(
            storage_config(options, "mla", tp_rank=rank, tp_size=2), logical, swa=pages.pool
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


# --- namespaces ---

OTHERS: dict[str, dict[str, Any]] = {
    "model": {"model_name": "org/other"},
    "no model": {"model_name": None},
    "type": {"shape": {"dtype": torch.float16}},
    "narrow type": {"shape": {"dtype": torch.float8_e4m3fn}},
    "page size": {"shape": {"page_tokens": 8}},
    "layers": {"shape": {"layers": 2}},
    "width": {"shape": {"width": 16}},
    "tensor parallelism": {"tp_size": 2},
    "pipeline": {"pp_size": 2},
    "context": {"attn_cp_size": 2},
    "layout": {"layout": "page_first_direct"},
    "layers first": {"layout": "layer_first"},
    "attention": {"kind": "mla"},
    "copies": {"v1": False},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_page_of_another_model_or_layout_is_a_miss(
    open_rank: OpenRank, other: dict[str, Any]
) -> None:
    keys = KEYS[:6]
    rank = open_rank()
    rank.store(keys)
    rank.close()
    rank = open_rank(**other)
    assert rank.backend.batch_exists(keys) == 0
    assert rank.load(keys) == [False] * len(keys)
    assert not rank.backend.exists(keys[0])
    assert rank.store(keys, version=1) == [True] * len(keys)
    assert rank.load(keys, version=1) == [True] * len(keys)
    usage = rank.connector.usage()
    assert len(usage) == 2
    assert all(name.startswith("sglang-") for name in usage), usage
    rank.close()
    rank = open_rank()
    assert rank.backend.batch_exists(keys) == len(keys)
    assert rank.load(keys) == [True] * len(keys)


def test_a_pool_has_a_namespace_of_its_own(open_rank: OpenRank) -> None:
    rank = open_rank(has_mamba=True)
    assert rank.states is not None
    rank.states.fill(torch.arange(2), KEYS[:2])
    rank.store(KEYS[:2])
    state = PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(2), keys=KEYS[:2])
    assert rank.backend.batch_set_v2([state]) == {"mamba": [True] * 2}
    names = sorted(name.split("#")[1] for name in rank.connector.usage())
    assert names == [MODEL, f"{MODEL}.mamba"]
    assert rank.load(KEYS[:2]) == [True, True]


@pytest.mark.parametrize(
    "model", [None, "", "a@b", "a#b@c#d", "ünï/ modell", "/mnt/models/" + "x" * 1000, "a\nb"]
)
def test_any_name_of_a_model_does(open_rank: OpenRank, model: str | None) -> None:
    rank = open_rank(model_name=model)
    assert rank.store(KEYS) == [True] * len(KEYS)
    assert rank.load(KEYS) == [True] * len(KEYS)
    (name,) = rank.connector.usage()
    assert name.startswith("sglang-")
    assert rank.backend.clear()
    assert rank.connector.usage() == {}


def test_a_namespace_ends_with_the_name_of_the_model(open_rank: OpenRank) -> None:
    rank = open_rank()
    rank.store(KEYS[:1])
    assert list(rank.connector.usage()) == [rank.form().namespace]
    assert rank.form().namespace.endswith(f"#{MODEL}")
    assert rank.form().prefix == f"{rank.form().namespace}@00000000"


# --- ranks ---


def test_each_rank_has_a_directory_of_its_own(open_rank: OpenRank, store_path: Path) -> None:
    ranks = [open_rank(tp_rank=rank, tp_size=3) for rank in range(3)]
    for version, rank in enumerate(ranks):
        assert rank.store(KEYS, version) == [True] * len(KEYS)
    for version, rank in enumerate(ranks):
        assert rank.load(KEYS, version) == [True] * len(KEYS)
    assert sorted(one.name for one in store_path.iterdir()) == ["rank-0", "rank-1", "rank-2"]


def test_no_two_ranks_have_the_same_directory(store_path: Path) -> None:
    sizes = {"dp_rank": 2, "pp_rank": 2, "attn_cp_rank": 3, "tp_rank": 4}
    backend = object.__new__(HiCacheKvring)
    backend._options = kvring_options(store_path)
    paths = set()
    for numbers in itertools.product(*map(range, sizes.values())):
        fields: dict[str, Any] = dict(zip(sizes, numbers, strict=True))
        backend._config = storage_config({}, pp_size=2, attn_cp_size=3, tp_size=4, **fields)
        paths.add(backend._options_of(fields["tp_rank"])["path"])
    assert paths == {f"{store_path}/rank-{number}" for number in range(48)}


def test_the_number_of_a_rank_stands_where_the_path_has_it(
    open_rank: OpenRank, store_path: Path
) -> None:
    path = store_path / "disk-{rank}" / "of-{rank}"
    for number in range(2):
        rank = open_rank(path=path, tp_rank=number, tp_size=2)
        assert rank.store(KEYS) == [True] * len(KEYS)
        assert (store_path / f"disk-{number}" / f"of-{number}").is_dir()


def test_a_store_on_several_disks(open_rank: OpenRank, store_path: Path) -> None:
    paths = [str(store_path / "one"), str(store_path / "two-{rank}")]
    rank = open_rank(options={"path": paths, "capacity": [64 * MIB] * 2}, tp_rank=1, tp_size=2)
    assert rank.store(KEYS) == [True] * len(KEYS)
    assert (store_path / "one" / "rank-1").is_dir()
    assert (store_path / "two-1").is_dir()
    assert rank.load(KEYS) == [True] * len(KEYS)


def test_each_rank_has_a_port_of_its_own(open_rank: OpenRank, port: int) -> None:
    options = {"metrics_port": port}
    ranks = [open_rank(options=options, tp_rank=rank, tp_size=2) for rank in range(2)]
    assert [rank.connector.metrics_port for rank in ranks] == [port, port + 1]


@pytest.mark.root
def test_a_device_that_ranks_would_share_is_refused(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        several: list[dict[str, Any]] = [{"tp_size": 2}, {"pp_size": 2}, {"attn_cp_size": 2}]
        for sizes in several:
            with pytest.raises(ValueError, match=r"\{rank\}") as raised:
                Rank(device.path, options={"capacity": "all"}, **sizes)
            assert str(device.path) in str(raised.value)
            assert WHERE in str(raised.value)
        rank = Rank(device.path, options={"capacity": "all"})
        assert rank.store(KEYS) == [True] * len(KEYS)
        assert rank.load(KEYS) == [True] * len(KEYS)
        rank.close()


@pytest.mark.root
def test_ranks_have_a_device_each(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ranks = []
        for number in range(2):
            directory = tmp_path / f"images-{number}"
            directory.mkdir()
            device = stack.enter_context(bare_loop_device(directory, 64 * MIB))
            (tmp_path / f"disk-{number}").symlink_to(device.path)
            options = {"capacity": "all"}
            ranks.append(Rank(tmp_path / "disk-{rank}", options=options, tp_rank=number, tp_size=2))
            stack.callback(ranks[-1].close)
        for version, rank in enumerate(ranks):
            assert rank.store(KEYS, version) == [True] * len(KEYS)
        for version, rank in enumerate(ranks):
            assert rank.load(KEYS, version) == [True] * len(KEYS)


# --- options ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"capcity": "1GiB"}, "capcity"),
        ({"capacity": "much"}, "capacity"),
        ({"engine": "none"}, "engine"),
        ({"lease_s": -1}, "lease_s"),
        ({"path": 5}, "path"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    store_path: Path, kind: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named) as raised:
        Rank(store_path, kind, options=options)
    assert str(raised.value).startswith(WHERE)


@pytest.mark.parametrize("name", ["path", "capacity"])
def test_an_option_that_is_needed_is_asked_for_by_name(store_path: Path, name: str) -> None:
    options = kvring_options(store_path)
    del options[name]
    pool = host_pool("mha", "page_first", device_pool("mha"))
    with pytest.raises((ValueError, TypeError), match=name) as raised:
        kvring_backend(storage_config(options), pool)
    assert str(raised.value).startswith(WHERE)


def test_a_rank_that_reads_needs_a_path(store_path: Path) -> None:
    options = kvring_options(store_path)
    del options["path"]
    pool = host_pool("mla", "page_first", device_pool("mla"))
    with pytest.raises(ValueError, match="'path' is needed") as raised:
        kvring_backend(storage_config(options, "mla", tp_rank=1, tp_size=2), pool)
    assert str(raised.value).startswith(WHERE)


def test_a_store_in_use_is_refused_by_its_path(open_rank: OpenRank, store_path: Path) -> None:
    rank = open_rank()
    with pytest.raises(kvring.InUseError, match=str(store_path)) as raised:
        open_rank()
    assert str(raised.value).startswith(WHERE)
    assert rank.store(KEYS) == [True] * len(KEYS)


def test_sglangs_own_names_are_no_options_of_a_store(open_rank: OpenRank) -> None:
    rank = open_rank(options={"file_storage_path": "/nowhere", "allocator": "default"})
    assert rank.store(KEYS) == [True] * len(KEYS)


# --- the rest of its life ---


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


def test_where_no_figures_are_wanted_there_are_none(open_rank: OpenRank) -> None:
    rank = open_rank()
    rank.store(KEYS)
    assert rank.backend.get_stats() is None


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


def test_what_is_cleared_after_the_close_stays(open_rank: OpenRank) -> None:
    rank = open_rank()
    rank.store(KEYS)
    rank.close()
    # SGLang takes an exception for a failure, and this is one.
    with suppress(kvring.ClosedError):
        rank.backend.clear()
    assert open_rank().load(KEYS) == [True] * len(KEYS)


def test_a_full_store_says_so_and_has_the_newest_pages(open_rank: OpenRank) -> None:
    shape = {"width": 2048}
    options = {"capacity": 16 * MIB, "lease_s": 0}
    rank = open_rank(shape=shape, options=options)
    keys = page_keys(240, "many")
    for first in range(0, len(keys), 8):
        rank.store(keys[first : first + 8])
    loaded = [rank.load([key]) for key in keys]
    assert [None] not in loaded
    assert loaded[-1] == [True]
    assert [False] in loaded
    stored = sum(one == [True] for one in loaded)
    assert 0 < stored * rank.pages.page_bytes <= 16 * MIB


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
