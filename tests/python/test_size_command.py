"""`kvring size`: hit ratios by capacity, of a store and of a trace."""

import json
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest

from kvring.cli import main
from tests.python.conftest import MIB, Client, make_key, pattern


def hits_by_hand(requests: list[list[int]], capacity: int) -> int:
    """Count the leading hits of each request in a cache that evicts by last use."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        is_found = True
        for chunk in request:
            is_found = is_found and chunk in cache
            hits += is_found
            cache[chunk] = None
            cache.move_to_end(chunk)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def test_a_trace_gives_what_a_cache_of_each_size_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(1)
    requests = []
    for _ in range(300):
        beginning = choose.randrange(12) * 100
        requests.append([beginning + number for number in range(choose.randrange(1, 9))])
    trace = tmp_path / "trace.jsonl"
    lines = [json.dumps({"timestamp": 0, "hash_ids": request}) for request in requests]
    trace.write_text("\n".join(lines), encoding="utf-8")
    assert main(["size", "--trace", str(trace), "--chunk-size=1MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lookups = sum(map(len, requests))
    assert found["lookups"] == lookups
    assert found["different_chunks"] == len({one for request in requests for one in request})
    ratios = [one["hit_ratio"] for one in found["capacities"]]
    assert 0 < ratios[0] < ratios[-1] < 1
    for one in found["capacities"]:
        by_hand = hits_by_hand(requests, one["capacity_bytes"] // MIB)
        assert one["hit_ratio"] == by_hand / lookups
    assert main(["size", "--trace", str(trace), "--chunk-size=1MiB"]) == 0
    assert f"{ratios[-1]:.1%}" in capsys.readouterr().out


@pytest.mark.parametrize("eviction", ["adaptive", "lru"])
def test_an_open_store_tells_what_more_would_bring(
    open_client: Callable[..., Client],
    store_directory: Path,
    capsys: pytest.CaptureFixture[str],
    eviction: str,
) -> None:
    client = open_client("32MiB", lease_s=0, eviction=eviction)
    assert main(["size", str(store_directory)]) == 1
    assert "nothing was looked up" in capsys.readouterr().err
    keys = [make_key(number) for number in range(40)]
    for key in keys:
        client.store({key: pattern(MIB, 1)})
    client.exists(keys)
    assert main(["size", str(store_directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["capacities"]
    assert [one["capacity_bytes"] for one in found] == [32 * MIB, 48 * MIB, 64 * MIB]
    assert found[0]["hit_ratio"] < found[1]["hit_ratio"] == found[2]["hit_ratio"] == 1
    assert main(["size", str(store_directory)]) == 0
    assert "64.0 MiB" in capsys.readouterr().out


def test_a_larger_capacity_brings_what_was_evicted_within_it(
    open_client: Callable[..., Client], store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are remembered for longer than that, and count no more then."""
    client = open_client("32MiB", lease_s=0, eviction="fifo")
    keys = [make_key(number) for number in range(120)]
    for key in keys:
        client.store({key: pattern(MIB, 1)})
    more: list[int] = []

    def count_what_is_missed() -> bool:
        """Tell whether nothing was evicted meanwhile."""
        before = client.connector.stats()
        stored = sum(client.exists(keys))
        after = client.connector.stats()
        names = ("would_hit_at_1_5x", "would_hit_at_2x")
        more[:] = [after[name] - before[name] for name in names]
        (usage,) = client.connector.usage().values()
        return before["evicted"] == after["evicted"] and usage["remembered_keys"] == 120 - stored

    client.wait_until(count_what_is_missed)
    # A key is counted up to so many bytes after it.
    assert more == [17, 33]
    assert main(["size", str(store_directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ratios = [one["hit_ratio"] for one in found["capacities"]]
    assert 0 < ratios[0] < ratios[1] < ratios[2] < 1
    assert found["not_admitted"] == 0
    assert main(["size", str(store_directory)]) == 0
    assert "not admitted" not in capsys.readouterr().out


def test_keys_that_were_not_admitted_are_missed_with_each_capacity(
    open_client: Callable[..., Client], store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = open_client("32MiB", lease_s=0, admit="second_use")
    chunks = {make_key(number): pattern(5000, 1) for number in range(10)}
    client.store(chunks)
    client.store(dict(list(chunks.items())[:4]))
    assert client.exists(list(chunks)) == [True] * 4 + [False] * 6
    assert main(["size", str(store_directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["hit_ratio"] for one in found["capacities"]] == [0.4, 0.4, 0.4]
    assert found["not_admitted"] == 10
    assert main(["size", str(store_directory)]) == 0
    assert "10 stores were not admitted: larger disks may bring more" in capsys.readouterr().out


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"hash_ids": [1]}\n{"ids": []}\n', encoding="utf-8")
    assert main(["size"]) == 2
    assert main(["size", str(tmp_path), "--trace", str(trace)]) == 2
    assert "not both" in capsys.readouterr().err
    assert main(["size", "--trace", str(trace), "--chunk-size=0"]) == 2
    assert main(["size", str(tmp_path), "--chunk-size=1MiB"]) == 2
    assert main(["size", "--trace", str(trace)]) == 2
    assert "--chunk-size" in capsys.readouterr().err
    assert main(["size", "--trace", str(trace), "--chunk-size=1MiB"]) == 1
    assert "line 2 is no request" in capsys.readouterr().err
    for line in (b'{"hash_ids": [1e999]}', b"[" * 100_000, b"\xff"):
        trace.write_bytes(line)
        assert main(["size", "--trace", str(trace), "--chunk-size=1MiB"]) == 1
        assert "line 1 is no request" in capsys.readouterr().err
    trace.write_text("", encoding="utf-8")
    assert main(["size", "--trace", str(trace), "--chunk-size=1MiB"]) == 1
    assert main(["size", str(tmp_path)]) == 1
