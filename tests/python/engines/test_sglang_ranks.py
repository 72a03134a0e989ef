"""Ranks of a model that all have the same KV (MLA): the first one stores it, the others read it.

tests/python/ranks has owners and readers in processes of their own, also such as are killed.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from kvring.ranks import segments
from kvring.ranks.reader import _Link
from tests.python.conftest import MIB, bare_loop_device, until
from tests.python.engines.sglang_host import KEYS, LAYOUTS, OpenRank, Rank, page_keys

MISSING = page_keys(3, "missing")
# A page takes some blocks, and a part of one.
SHAPE = {"width": 301}
ALL = [True] * len(KEYS)
NONE = [False] * len(KEYS)


@pytest.fixture
def open_rank(open_rank: OpenRank) -> OpenRank:
    """Open ranks."""

    def open_one(number: int, size: int, *, layout: str = LAYOUTS[0], **more: Any) -> Rank:
        return open_rank("mla", layout, shape=SHAPE, tp_rank=number, tp_size=size, **more)

    return open_one


def exists(rank: Rank, keys: list[str]) -> tuple[int, list[bool]]:
    """Say how many leading pages there are, and which."""
    return rank.backend.batch_exists(keys), [rank.backend.exists(key) for key in keys]


@pytest.mark.parametrize(
    ("size", "layout", "v1"),
    [(2, "layer_first", True), (3, "page_first_direct", False), (4, "page_first", True)],
)
def test_all_ranks_load_what_the_first_has_stored(
    open_rank: OpenRank, store_path: Path, size: int, layout: str, v1: bool
) -> None:
    owner, *readers = (open_rank(rank, size, layout=layout, v1=v1) for rank in range(size))
    assert exists(readers[0], KEYS) == (0, NONE)
    assert readers[0].load(KEYS) == NONE
    assert owner.store(KEYS) == ALL
    for reader in readers:
        assert exists(reader, [*KEYS, *MISSING]) == (len(KEYS), [*ALL, False, False, False])
        assert reader.load([*MISSING, *KEYS]) == [False, False, False, *ALL]
        assert (reader.load([]), exists(reader, [])) == ([], (0, []))
    assert [one.name for one in store_path.iterdir()] == ["rank-0"]


def test_without_its_owner_all_is_a_miss_until_there_is_a_new_one(open_rank: OpenRank) -> None:
    owner, reader = open_rank(0, 2), open_rank(1, 2)
    assert owner.store(KEYS) == ALL
    assert reader.load(KEYS) == ALL
    owner.close()
    for _ in range(10):
        assert exists(reader, KEYS) == (0, NONE)
        assert reader.load(KEYS) == NONE
    open_rank(0, 2)
    until("the new owner", lambda: reader.load(KEYS) == ALL)


def test_a_reader_that_hangs_up_gives_its_segments_back(
    open_rank: OpenRank, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvring.ranks.server._SEGMENT_DEADLINE_S", 1.0)
    owner, reader = open_rank(0, 2), open_rank(1, 2)
    assert owner.store(KEYS) == ALL
    assert len(KEYS) > segments.SEGMENTS
    lengths = owner.pages.pool.get_page_buffer_meta(owner.pages.rows([0]))[1]
    # As a reader does before it copies, and then no more.
    for key in KEYS[: segments.SEGMENTS]:
        link = _Link(store_path / "rank-0", None)
        link.send({"load": [owner.form().prefix, [key], list(lengths)]})
        assert link.receive()[1] == [True]
        link.close()
    until("the reader has one", lambda: reader.load(KEYS[-1:]) == [True])


def test_readers_store_nothing(open_rank: OpenRank, store_path: Path) -> None:
    owner, reader = open_rank(0, 2), open_rank(1, 2)
    backend, rows = reader.backend, reader.pages.rows(range(len(KEYS)))
    page = torch.zeros(reader.pages.page_bytes, dtype=torch.uint8)
    transfer = PoolTransfer(PoolName.KV, host_indices=rows, keys=KEYS)
    for is_stored in (False, True):
        reader.pages.fill(rows, KEYS, version=99)
        assert backend.batch_set_v1(KEYS, rows) == NONE
        assert backend.batch_set_v2([transfer])[PoolName.KV] == NONE
        assert backend.set(KEYS[0], page) is backend.batch_set(KEYS, [page] * len(KEYS)) is False
        assert exists(owner, KEYS) == ((len(KEYS), ALL) if is_stored else (0, NONE))
        assert is_stored or owner.store(KEYS) == ALL
        assert reader.load(KEYS) == owner.load(KEYS) == ALL
    assert [one.name for one in store_path.iterdir()] == ["rank-0"]


def test_the_states_of_each_rank_are_its_own(open_rank: OpenRank, store_path: Path) -> None:
    state = PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(4), keys=KEYS[:4])
    for life in range(2):
        ranks = [open_rank(rank, 2, has_mamba=True) for rank in range(2)]
        if life == 0:
            assert ranks[0].store(KEYS) == ALL
            for version, rank in enumerate(ranks):
                assert rank.backend.batch_get_v2([state]) == {"mamba": [False] * 4}
                assert rank.states is not None
                rank.states.fill(state.host_indices, KEYS[:4], version)
                assert rank.backend.batch_set_v2([state]) == {"mamba": [True] * 4}
        for version, rank in enumerate(ranks):
            assert rank.states is not None
            rank.states.wipe(state.host_indices)
            assert rank.backend.batch_get_v2([state]) == {"mamba": [True] * 4}
            assert rank.states.hold(state.host_indices, KEYS[:4], version) == [True] * 4
            assert rank.load(KEYS) == ALL
        for rank in ranks:
            rank.close()
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
def test_ranks_find_the_index_of_a_device_elsewhere(tmp_path: Path, open_rank: OpenRank) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        (tmp_path / "disk-0").symlink_to(device.path)
        options = {"capacity": "all", "index_path": str(tmp_path / "index")}
        path = tmp_path / "disk-{rank}"
        owner, reader = (open_rank(rank, 2, path=path, options=options) for rank in range(2))
        assert owner.store(KEYS) == ALL
        assert reader.load(KEYS) == ALL
        owner.close()
