"""Under which names pages are stored: no model and no layout gets those of another."""

from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from tests.python.engines.sglang_host import KEYS, OpenRank
from tests.support.sglang_pools import MODEL

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
