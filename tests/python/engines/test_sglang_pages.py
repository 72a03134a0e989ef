"""Pages of one pool, by each call of SGLang's controller."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer, PoolTransferResult

from kvring.logs import LogLimit
from tests.python.engines.sglang_host import (
    BOTH_INTERFACES,
    KEYS,
    KINDS,
    LAYOUTS,
    MISSING,
    PAGE_TOKENS,
    OpenRank,
    content_of,
)


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


def test_what_a_call_cannot_use_is_a_miss_and_harms_nothing(
    open_rank: OpenRank, caplog: pytest.LogCaptureFixture
) -> None:
    rank = open_rank()
    backend, length = rank.backend, rank.pages.page_bytes
    rank.store(KEYS[:2])
    page = torch.zeros(length, dtype=torch.uint8)
    past = rank.pages.pool.size
    answers: dict[str, tuple[Callable[[], Any], Any]] = {
        "2 pages of pool 'kv' with 4 host indices": (
            lambda: backend.batch_get_v1(KEYS[:2], rank.pages.rows([0])),
            [False, False],
        ),
        "1 pages of pool 'kv' with 0 host indices": (
            lambda: backend.batch_set_v1(KEYS[:1], None),
            [False],
        ),
        f"begin at host indices {past} to {past}": (
            lambda: backend.batch_set_v1(KEYS[:1], rank.pages.rows([past // PAGE_TOKENS])),
            [False],
        ),
        f"begin at host indices -{PAGE_TOKENS} to 0": (
            lambda: backend.batch_get_v1(KEYS[:2], rank.pages.rows([0, -1])),
            [False, False],
        ),
        "2 keys with 1 tensors": (lambda: backend.batch_get(KEYS[:2], [page]), [None, None]),
        "tensor 0 has no memory here": (
            lambda: backend.get(KEYS[0], torch.zeros(2 * length, dtype=torch.uint8)[::2]),
            None,
        ),
        "hit policy": (
            lambda: backend.batch_exists_v2(
                KEYS[:2], [PoolTransfer(PoolName.KV, hit_policy="of a later SGLang")]
            ),
            PoolTransferResult(0, {}, []),
        ),
        "pool 'mamba' is not registered": (
            lambda: backend.batch_get_v2(
                [PoolTransfer("mamba", rank.pages.rows([0]), keys=KEYS[:1])]
            ),
            {"mamba": [False]},
        ),
    }
    for reason, (call, answer) in answers.items():
        # The second one within a minute is not told of.
        backend._log_limit = LogLimit()
        caplog.clear()
        assert (call(), call()) == (answer, answer), reason
        assert [reason in record.getMessage() for record in caplog.records] == [True], caplog.text
    assert rank.load(KEYS[:2]) == [True, True]


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
