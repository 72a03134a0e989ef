"""The simulation of eviction: traces to follow by hand, and the same outcome every time."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from benches.eviction.__main__ import hits_of, means_of
from benches.eviction.simulation import Document, simulate
from benches.eviction.traces import PUBLIC_TRACES, TraceError, convert, find

ADAPTIVE, ADMIT, LFU, LRU, MIN, MRU = "adaptive", "adaptive+admit", "lfu", "lru", "min", "mru"
MADE = {
    "chat": "made",
    "rag": "made",
    "scan": "made",
    "one-off": "adversarial",
    "shift": "adversarial",
    "agentic": "adversarial",
    "cycle": "adversarial",
    "return": "adversarial",
}
HALF = 2


def one_by_one(*chunks: int) -> str:
    return "".join(f"{chunk}\n" for chunk in chunks)


BY_HAND = {
    "uses": one_by_one(0, 1, 0, 2, 0, 3, 0),
    "depth": "0 1\n2\n0\n3\n",
    "ghost": one_by_one(0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 0),
    "forgotten": one_by_one(0, 1, 2, 0, 3, 1, 4, 5, 6),
    "refusal": one_by_one(0, 0, 1, 0, 2, 0, 2),
    "bypass": one_by_one(0, 1, 0),
    "prefix": "0 1 2\n0 1 2\n3\n",
    "twice": one_by_one(*range(16), *range(16)),
    "hot": one_by_one(0, *range(9), 0, *range(9, 16)),
    "lost": one_by_one(*range(16)) + "16 17\n16\n" + one_by_one(*range(18, 32)),
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return run(tmp_path_factory.mktemp("traces"))


def run(directory: Path) -> Document:
    files = {name: directory / name for name in BY_HAND}
    for name, text in BY_HAND.items():
        files[name].write_text(text)
    return simulate(files, requests=60, release=False)


def cell(document: Document, trace: str, policy: str, **cache: Any) -> dict[str, Any]:
    usual = {"fraction": HALF, "memory": None}
    wanted = {**usual, **cache, "trace": trace, "policy": policy}
    (found,) = (one for one in document["cells"] if wanted.items() <= one.items())
    return dict(found)


def hits_and_stores(*arguments: Any, **cache: Any) -> tuple[int, int]:
    found = cell(*arguments, **cache)
    return found["prefix_hits"], found["stores"]


@pytest.mark.parametrize(
    ("policy", "hits"), [(ADAPTIVE, 3), (LRU, 3), (LFU, 3), ("fifo", 2), (MRU, 1), (MIN, 3)]
)
def test_hits_by_hand(document: Document, policy: str, hits: int) -> None:
    assert cell(document, "uses", policy)["prefix_hits"] == hits


def test_adaptive_lets_the_end_of_a_prefix_go_first(document: Document) -> None:
    # 2 goes for 1, whose beginning stays; with LRU 2 goes for 0.
    assert hits_and_stores(document, "depth", ADAPTIVE) == (1, 4)
    assert hits_and_stores(document, "depth", LRU) == (0, 5)


def test_a_chunk_that_comes_back_has_the_uses_it_had(document: Document) -> None:
    # Of four chunks 0 goes for 4. When it is back it is worth a use: 5 goes for 8.
    assert hits_and_stores(document, "ghost", ADAPTIVE) == (1, 10)
    assert hits_and_stores(document, "ghost", LFU) == (0, 11)
    # A quarter of a level from one key, as four chunks are held.
    assert cell(document, "ghost", ADAPTIVE)["bonus"] == 1.25


def test_twice_as_many_keys_are_remembered_as_are_held(document: Document) -> None:
    # One chunk is held. 0 comes back among the last two that went, and 1 later than that.
    assert cell(document, "forgotten", ADAPTIVE, fraction=4)["bonus"] == 2


def test_what_is_not_worth_a_write_is_not_stored(document: Document) -> None:
    # 0 comes back and was used, so the bonus of the only chunk falls to its least: 2 is refused.
    assert hits_and_stores(document, "refusal", ADMIT) == (2, 4)
    assert cell(document, "refusal", ADMIT)["bonus"] == 1 / 32 + 1
    assert hits_and_stores(document, "refusal", ADAPTIVE) == (1, 6)


def test_min_stores_what_is_asked_for_soonest(document: Document) -> None:
    assert hits_and_stores(document, "bypass", MIN) == (1, 1)
    assert hits_and_stores(document, "bypass", LRU) == (0, 3)
    assert hits_and_stores(document, "prefix", MIN) == (2, 2)
    assert hits_and_stores(document, "twice", MIN) == (8, 8)
    assert hits_and_stores(document, "twice", MIN, memory=16) == (9, 9)


def test_a_use_of_memory_is_one_of_the_disk_which_stores_nothing_again(document: Document) -> None:
    assert hits_and_stores(document, "hot", LFU, memory=16) == (2, 16)
    # 16 goes for 17, and is in memory when it is asked for.
    assert hits_and_stores(document, "lost", MRU) == (0, 33)
    assert hits_and_stores(document, "lost", MRU, memory=16) == (1, 32)


def test_traces_made_by_rule(document: Document) -> None:
    traces = {trace["name"]: trace for trace in document["traces"] if trace["name"] not in BY_HAND}
    assert {name: trace["set"] for name, trace in traces.items()} == MADE
    assert {trace["requests"] for trace in traces.values()} == {60}
    for name in ("chat", "rag", "scan"):
        assert 0 < cell(document, name, LRU)["prefix_hits"] < traces[name]["lookups"]


def test_no_policy_finds_more_than_min(document: Document) -> None:
    by_cache: dict[tuple[Any, ...], dict[str, int]] = {}
    for one in document["cells"]:
        key = (one["trace"], one["memory"], one["fraction"])
        by_cache.setdefault(key, {})[one["policy"]] = one["prefix_hits"]
    assert len(by_cache) == len(document["traces"]) * 3 * 5
    assert all(max(hits.values()) == hits[MIN] for hits in by_cache.values())


def test_the_same_arguments_give_the_same_outcome(document: Document, tmp_path: Path) -> None:
    assert run(tmp_path) == document


def test_tables() -> None:
    def cells(trace: str, **counts: tuple[int, int]) -> list[dict[str, Any]]:
        common = {"trace": trace, "memory": None, "fraction": 8}
        return [
            {**common, "policy": policy, "prefix_hits": hits, "stores": stores}
            for policy, (hits, stores) in counts.items()
        ]

    some = cells("some", lru=(5, 4), lfu=(4, 4), fifo=(2, 8), mru=(0, 9), adaptive=(6, 3))
    more = cells("more", lru=(2, 4), lfu=(4, 4), fifo=(2, 8), mru=(0, 9), adaptive=(2, 2))
    none = cells("none", lru=(0, 4), lfu=(0, 4), fifo=(0, 4), mru=(1, 1), adaptive=(0, 4))
    traces = [{"name": name, "set": "made", "lookups": 8} for name in ("some", "more", "none")]
    small: Document = {"traces": traces, "cells": [*some, *more, *none]}
    header, first, *_ = hits_of(small)
    assert dict(zip(header, first, strict=True))[ADAPTIVE] == "75.0"
    assert first[:3] == ["some", "none", "1/8"]
    (adaptive,) = (row for row in means_of(small) if ADAPTIVE in row)
    assert adaptive[:4] == ["made", "none", ADAPTIVE, "2"]
    assert adaptive[4:] == ["1.000", "0.500", "0.850", "0.500", "0.625"]


def test_traces_of_others_are_read_compressed_or_not(tmp_path: Path) -> None:
    trace = PUBLIC_TRACES[0]
    assert find(trace, tmp_path) is None
    # Hashes may be of any size, and of the block alone: 9 is another chunk after another beginning.
    requests = [[10**20, 7, 9], [10**20, 9], [9, 7]]
    lines = "".join(json.dumps({"timestamp": 0, "hash_ids": ids}) + "\n" for ids in requests)
    compressed = tmp_path / f"{trace.file_name}.xz"
    compressed.write_bytes(lzma.compress(lines.encode()))
    assert find(trace, tmp_path) == compressed
    plain = tmp_path / trace.file_name
    plain.write_text(lines)
    assert find(trace, tmp_path) == plain
    for source in (plain, compressed):
        target = tmp_path / "converted"
        convert(source, target)
        assert target.read_text() == "0 1 2\n0 3\n4 5\n"


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"hash_ids": ["x"]}', '{"hash_ids": null}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    source = tmp_path / "trace.jsonl"
    source.write_text('{"hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(TraceError, match="line 2"):
        convert(source, tmp_path / "converted")


def test_a_whole_store_finds_what_is_simulated_across_a_restart(tmp_path: Path) -> None:
    found = simulate({}, requests=12_000, replay=tmp_path / "store", release=False)
    store, simulated = found["store"], found["simulated"]
    assert sum(store) == pytest.approx(sum(simulated), rel=0.01)
    # The store is opened again after the second quarter, and goes on as it was.
    assert store == pytest.approx(simulated, rel=0.02)
