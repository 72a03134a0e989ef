"""Ranks of a model that all have the same KV (MLA): the first one stores it, the others read it.

All of them are processes of their own, or all are in this one, where time matters. In processes of
their own none gives up on another before that counts as a hang (sglang_worker.py).
"""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from tests.python.conftest import HANG_DEADLINE_S, MIB, bare_loop_device
from tests.python.engines.processes import Process, processes
from tests.python.engines.sglang_host import KEYS, LAYOUTS, OpenRank, Rank, page_keys

MISSING = page_keys(3, "missing")
# A page takes some blocks, and a part of one.
SHAPE = {"width": 301}
ALL = [True] * len(KEYS)
NONE = [False] * len(KEYS)

StartRank = Callable[..., Process]


@pytest.fixture
def start_rank(store_path: Path) -> Iterator[StartRank]:
    """Start ranks in processes of their own."""
    with processes("sglang_worker").started() as start:

        def start_one(
            number: int,
            size: int,
            *,
            path: Path = store_path,
            layout: str = LAYOUTS[0],
            **more: Any,
        ) -> Process:
            fields = {"tp_rank": number, "tp_size": size, "shape": SHAPE, **more}
            process = start("answer", str(path), ("mla", layout), fields)
            assert process.hear() == "ready"
            return process

        yield start_one


@pytest.fixture
def open_rank(open_rank: OpenRank) -> OpenRank:
    """Open ranks in this process."""

    def open_one(number: int, size: int, *, layout: str = LAYOUTS[0], **more: Any) -> Rank:
        return open_rank("mla", layout, shape=SHAPE, tp_rank=number, tp_size=size, **more)

    return open_one


def wait_for(reader: Process, found: int) -> None:
    """Wait until a reader finds so many pages: it looks for its owner from time to time."""
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while (leading := reader.call("exists", KEYS)[0]) != found:
        assert time.monotonic() < deadline_s, f"{leading} pages are found, not {found}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("size", "layout", "v1"),
    [(2, "layer_first", True), (3, "page_first_direct", False), (4, "page_first", True)],
)
def test_all_ranks_load_what_the_first_has_stored(
    start_rank: StartRank, store_path: Path, size: int, layout: str, v1: bool
) -> None:
    owner, *readers = (start_rank(rank, size, layout=layout, v1=v1) for rank in range(size))
    assert readers[0].call("exists", KEYS) == (0, NONE)
    assert readers[0].call("load", KEYS) == NONE
    assert owner.call("store", KEYS) == ALL
    for reader in readers:
        assert reader.call("exists", [*KEYS, *MISSING]) == (len(KEYS), [*ALL, False, False, False])
        assert reader.call("load", [*MISSING, *KEYS]) == [False, False, False, *ALL]
        assert reader.call("load", []) == []
        assert reader.call("exists", []) == (0, [])
    assert [one.name for one in store_path.iterdir()] == ["rank-0"]
    for process in (owner, *readers):
        process.end()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "closed"])
def test_without_its_owner_all_is_a_miss_until_there_is_a_new_one(
    start_rank: StartRank, is_killed: bool
) -> None:
    owner, readers = start_rank(0, 3), [start_rank(1, 3), start_rank(2, 3)]
    assert owner.call("store", KEYS) == ALL
    assert readers[0].call("load", KEYS) == ALL
    assert readers[1].call("exists", KEYS) == (len(KEYS), ALL)
    if is_killed:
        owner.kill()
    else:
        owner.end()
    for _ in range(10):
        for reader in readers:
            assert reader.call("exists", KEYS) == (0, NONE)
            assert reader.call("load", KEYS) == NONE
    start_rank(0, 3)
    for reader in readers:
        wait_for(reader, len(KEYS))
        assert reader.call("load", KEYS) == ALL


def test_readers_store_nothing(start_rank: StartRank, store_path: Path) -> None:
    owner, reader = start_rank(0, 2), start_rank(1, 2)
    assert reader.call("store_by_all_calls", KEYS) == [NONE, NONE, False, False]
    assert owner.call("exists", KEYS) == (0, NONE)
    assert owner.call("store", KEYS) == ALL
    assert reader.call("store_by_all_calls", KEYS) == [NONE, NONE, False, False]
    assert reader.call("load", KEYS) == ALL
    assert owner.call("load", KEYS) == ALL
    assert [one.name for one in store_path.iterdir()] == ["rank-0"]


def test_the_states_of_each_rank_are_its_own(start_rank: StartRank, store_path: Path) -> None:
    for life in range(2):
        ranks = [start_rank(rank, 2, has_mamba=True) for rank in range(2)]
        if life == 0:
            assert ranks[0].call("store", KEYS) == ALL
            for version, rank in enumerate(ranks):
                assert rank.call("load_states", KEYS[:4], version) == [False] * 4
                assert rank.call("store_states", KEYS[:4], version) == [True] * 4
        for version, rank in enumerate(ranks):
            assert rank.call("load_states", KEYS[:4], version) == [True] * 4
            assert rank.call("load", KEYS) == ALL
        for rank in ranks:
            rank.end()
    assert sorted(one.name for one in store_path.iterdir()) == ["rank-0", "rank-1"]


def test_a_reader_whose_own_store_cannot_be_opened_reads_all_the_same(
    open_rank: OpenRank, store_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = open_rank(0, 2)
    in_the_way = store_path / "rank-1"
    in_the_way.touch()
    reader = open_rank(1, 2, has_mamba=True)
    assert "rank 1: its own store cannot be opened" in caplog.text
    assert str(in_the_way) in caplog.text
    assert owner.store(KEYS) == ALL
    assert reader.load(KEYS) == ALL
    assert reader.states is not None
    state = PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(2), keys=KEYS[:2])
    nothing, everything = {"mamba": [False] * 2}, {"mamba": [True] * 2}
    assert reader.backend.batch_set_v2([state]) == reader.backend.batch_get_v2([state]) == nothing
    assert reader.backend.batch_exists_v2(KEYS, [state]).kv_hit_pages == 0
    assert reader.backend.exists(KEYS[0])
    in_the_way.unlink()
    # It is not tried again for each call.
    assert reader.backend.batch_set_v2([state]) == nothing
    reader.backend._store._next_try_s = 0.0
    assert (
        reader.backend.batch_set_v2([state]) == reader.backend.batch_get_v2([state]) == everything
    )
    assert reader.connector.stats()["registered_bytes"] > 0
    reader.close()
    assert reader.backend.batch_get_v2([state]) == nothing


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_load_that_raises_leaves_those_of_other_pools_to_be_waited_for(
    open_rank: OpenRank, is_first: bool
) -> None:
    """SGLang uses their memory again as soon as it has the answer."""
    owner, reader = open_rank(0, 2), open_rank(1, 2, has_mamba=True)
    owner.store(KEYS)
    assert reader.states is not None
    keys: Any = [*KEYS[:1], b"no text"]
    states = torch.arange(2)
    right = PoolTransfer(PoolName.MAMBA, host_indices=states, keys=KEYS[:2])
    wrong = PoolTransfer(PoolName.KV, host_indices=reader.pages.rows(range(2)), keys=keys)
    reader.states.fill(states, KEYS[:2])
    assert reader.backend.batch_set_v2([right]) == {"mamba": [True] * 2}
    reader.states.wipe(states)
    transfers = [wrong, right] if is_first else [right, wrong]
    expected = {"kv": [False] * 2, "mamba": [True] * 2}
    assert reader.backend.batch_get_v2(transfers) == expected
    assert reader.states.hold(states, KEYS[:2]) == [True] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_page_that_is_stored_again_is_the_new_one_for_readers(
    open_rank: OpenRank, layout: str
) -> None:
    owner, *readers = (open_rank(rank, 3, layout=layout) for rank in range(3))
    for version in range(4):
        keys = KEYS[2:] if version else KEYS
        assert owner.store(keys, version) == [True] * len(keys)
        for reader in readers:
            assert reader.load(KEYS[2:], version) == ALL[2:]
            assert reader.load(KEYS[2:5], version) == ALL[2:5]
            assert reader.load(KEYS[:2]) == ALL[:2]


def test_pages_that_were_cleared_are_gone_for_readers(open_rank: OpenRank) -> None:
    owner, reader = open_rank(0, 2), open_rank(1, 2)
    owner.store(KEYS)
    assert reader.load(KEYS) == ALL
    assert reader.backend.clear()
    assert reader.load(KEYS) == ALL
    assert owner.backend.clear()
    assert reader.backend.batch_exists(KEYS) == 0
    assert reader.load(KEYS) == NONE


def test_readers_of_another_layout_find_nothing(open_rank: OpenRank) -> None:
    owner = open_rank(0, 2)
    owner.store(KEYS)
    others: list[dict[str, Any]] = [
        {"layout": "layer_first"},
        {"model_name": "org/other"},
        {"v1": False},
    ]
    for other in others:
        reader = open_rank(1, 2, **other)
        assert reader.backend.batch_exists(KEYS) == 0
        assert reader.load(KEYS) == NONE
    assert open_rank(1, 2).load(KEYS) == ALL


def test_ranks_read_from_the_first_one_of_their_own_group(
    open_rank: OpenRank, store_path: Path
) -> None:
    groups: list[dict[str, Any]] = [
        {"pp_size": 2, "attn_cp_size": 2, "dp_rank": dp, "pp_rank": pp, "attn_cp_rank": cp}
        for dp in range(2)
        for pp in range(2)
        for cp in range(2)
    ]
    owners = [open_rank(0, 2, **group) for group in groups[3:6]]
    for version, owner in enumerate(owners):
        assert owner.store(KEYS, version) == ALL
    for version, group in enumerate(groups[3:6]):
        assert open_rank(1, 2, **group).load(KEYS, version) == ALL
    assert open_rank(1, 2, **groups[0]).load(KEYS) == NONE
    assert sorted(one.name for one in store_path.iterdir()) == ["rank-10", "rank-6", "rank-8"]


@pytest.mark.root
def test_ranks_find_the_index_of_a_device_elsewhere(tmp_path: Path, start_rank: StartRank) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        (tmp_path / "disk-0").symlink_to(device.path)
        index_path = tmp_path / "index"
        index_path.mkdir()
        path = tmp_path / "disk-{rank}"
        options = {"capacity": "all", "index_path": str(index_path)}
        owner, reader = (start_rank(rank, 2, path=path, options=options) for rank in range(2))
        assert owner.call("store", KEYS) == ALL
        wait_for(reader, len(KEYS))
        assert reader.call("load", KEYS) == ALL
        owner.end()
    shutil.rmtree(index_path)
