"""The simulation of eviction: traces to follow by hand, and the same outcome every time."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from benches.eviction.simulation import Document, simulate
from benches.eviction.traces import PUBLIC_TRACES, TraceError, convert, find

EIGHT_SIZES, LRU, ONE_SIZE, S3FIFO, WITHOUT_GHOST = "eight", "lru", "one", "s3fifo", "without ghost"
# Half of all chunks are two, and eight in the last one, for which memory has one.
BY_HAND = {
    "uses": "0\n1\n0\n2\n0\n3\n0\n",
    "order": "0 1\n2\n0\n3\n",
    "holes": "0 1\n2 1\n3\n",
    "returns": "0\n1\n2\n0\n3\n",
    "memory": "".join(f"{chunk}\n" for chunk in (0, *range(9), 0, *range(9, 16))),
}
HALF = 2


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return run(tmp_path_factory.mktemp("traces"))


def run(directory: Path) -> Document:
    files = {name: directory / name for name in BY_HAND}
    for name, text in BY_HAND.items():
        files[name].write_text(text)
    return simulate(files, requests=60, release=False)


def cell(document: Document, trace: str, policy: str, **chosen: Any) -> dict[str, Any]:
    wanted = {
        "sizes": ONE_SIZE,
        "fraction": HALF,
        "order": "forward",
        "variant": "",
        "behind_memory": False,
        **chosen,
        "trace": trace,
        "policy": policy,
    }
    (found,) = (
        one
        for one in document["cells"]
        if all(one[name] == value for name, value in wanted.items())
    )
    return dict(found)


@pytest.mark.parametrize(
    ("policy", "hits"), [("lru", 3), ("lfu", 3), ("fifo", 2), ("mru", 1), ("s3fifo", 3)]
)
def test_hits_by_hand(document: Document, policy: str, hits: int) -> None:
    found = cell(document, "uses", policy)
    assert found["chunks"] == {"lookups": 7, "hits": hits, "prefix_hits": hits}
    assert found["blocks"]["hits"] == 256 * hits
    assert found["room_blocks"] == 512


def test_what_is_in_memory_does_not_ask_the_disk(document: Document) -> None:
    # The second use of chunk 0 is one that kvring does not see, so that 0 goes for 8.
    assert cell(document, "memory", "lfu")["chunks"]["hits"] == 2
    behind = cell(document, "memory", "lfu", behind_memory=True)
    assert (behind["chunks"]["hits"], behind["stores"]) == (1, 17)


def test_traces_made_by_rule(document: Document) -> None:
    made = {trace["name"]: trace for trace in document["traces"] if trace["name"] not in BY_HAND}
    assert list(made) == ["chat", "rag", "scan"]
    for name, trace in made.items():
        assert trace["requests"] == 60
        assert trace["about"].startswith("seed ")
        found = cell(document, name, LRU)
        assert found["chunks"]["lookups"] == trace["lookups"]
        assert 0 < found["chunks"]["prefix_hits"] <= found["chunks"]["hits"] < trace["lookups"]
        sizes = cell(document, name, LRU, sizes=EIGHT_SIZES)
        assert sizes["room_blocks"] == trace["footprint_blocks"][EIGHT_SIZES] // HALF


def test_the_same_arguments_give_the_same_outcome(document: Document, tmp_path: Path) -> None:
    assert run(tmp_path) == document


def test_traces_of_others_are_read_compressed_or_not(tmp_path: Path) -> None:
    trace = PUBLIC_TRACES[0]
    assert find(trace, tmp_path) is None
    requests = [[0, 1, 2], [0, 3]]
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
        assert target.read_text() == "0 1 2\n0 3\n"


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"hash_ids": ["x"]}', '{"hash_ids": null}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    source = tmp_path / "trace.jsonl"
    source.write_text('{"hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(TraceError, match="line 2"):
        convert(source, tmp_path / "converted")
