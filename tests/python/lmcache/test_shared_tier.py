"""kvring in front of a tier that nodes share: promotion, locks, options."""

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from prometheus_client import REGISTRY, generate_latest

import kvring
from kvring.lmcache import KvringL2Adapter, KvringSharedL2AdapterConfig
from kvring.shared_tier.key_locks import KeyLocks
from kvring.shared_tier.sidecars import Sidecar
from tests.python.conftest import until
from tests.python.lmcache.adapter_driver import filled_memory
from tests.python.lmcache.shared_tiers import (
    ALL,
    BUFFER_BYTES,
    CHUNK_BYTES,
    NONE,
    NUMBERS,
    MakeNode,
    content_of,
    keys_of,
    stored_in,
)
from tests.python.test_dashboard import queries
from tests.support.servers import Network, Redis

pytestmark = pytest.mark.lmcache

MOCK = {"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 1}


@pytest.mark.parametrize("kind", ["resp", "fs", "fs_native"])
def test_what_one_node_stored_is_there_for_another_and_then_its_own(
    make_node: MakeNode, kind: str, tmp_path: Path
) -> None:
    directory = {"type": kind, "base_path": str(tmp_path / "shared")}
    options = {} if kind == "resp" else {"shared_tier": directory}
    first, second = make_node("first", **options), make_node("second", **options)
    first.share()
    assert second.adapter.report_status()["keys"] == 0
    assert second.fetch(NUMBERS) == ALL
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    assert second.adapter.report_status()["keys"] == len(NUMBERS)
    before = second.tier
    assert second.fetch(NUMBERS) == ALL
    assert second.tier == before, "it asked the shared tier again"
    assert before["loaded_bytes"] == len(NUMBERS) * CHUNK_BYTES
    assert before["buffered_bytes"] == 0


def test_what_admission_refuses_is_not_promoted(make_node: MakeNode) -> None:
    first, second = make_node("first"), make_node("second", admit="second_use")
    first.share()
    for count in (0, len(NUMBERS)):
        assert second.fetch(NUMBERS) == ALL
        until("its buffers are back", lambda: second.tier["buffered_bytes"] == 0)
        assert second.tier["promoted"] == second.adapter.report_status()["keys"] == count


def test_an_identity_finds_its_own_and_no_other(make_node: MakeNode) -> None:
    first = make_node("first", identity="fp8")
    first.share()
    assert make_node("like it", identity="fp8").fetch(NUMBERS) == ALL
    assert make_node("another", identity="bf16").fetch(NUMBERS) == NONE
    assert make_node("without", identity="none").fetch(NUMBERS) == NONE


def test_prometheus_is_told(make_node: MakeNode, redis: Redis, tmp_path: Path) -> None:
    node = make_node("one")
    node.share()
    assert node.fetch([*NUMBERS, 99]) == [*ALL, False]
    labels = {"store": str(tmp_path / "one")}

    def value(name: str) -> float | None:
        found: float | None = REGISTRY.get_sample_value(f"kvring_shared_{name}", labels)
        return found

    assert value("lookups_total") == 1
    assert value("found_total") == 0
    assert value("stores_total") == len(NUMBERS)
    assert value("answering") == 1
    redis.kill()
    node.fetch([100])
    until("it is told", lambda: value("answering") == 0)
    assert value("lost_total") == 1
    page = generate_latest(REGISTRY).decode()
    names = set(re.findall(r"^# TYPE (kvring_shared_\w+)", page, re.M))
    names = {name for name in names if not name.endswith("_created")}
    shown = " ".join(query for _, query in queries(of_shared_tier=True))
    assert names == set(re.findall(r"kvring_shared_\w+", shown))
    node.adapter.close()
    assert value("lookups_total") is None


def test_locks_of_both_are_given_back(make_node: MakeNode) -> None:
    first, second = make_node("first"), make_node("second")
    first.share()
    for _ in range(3):
        assert second.lookup(NUMBERS) == ALL
        second.unlock(NUMBERS)
    assert second.fetch(NUMBERS) == ALL
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    assert second.fetch(NUMBERS) == ALL
    assert second.adapter.report_status()["locked_keys"] == 0
    assert not second.adapter._locks


def test_a_full_buffer_costs_the_shared_tier_and_not_the_store(
    make_node: MakeNode, network: Network
) -> None:
    options = {"shared_buffer": 4 * BUFFER_BYTES}
    node = make_node("one", network.port, **options)
    assert node.store(NUMBERS)
    assert node.tier["skipped_stores"] == len(NUMBERS) - 4
    until("the buffer is free", lambda: node.tier["buffered_bytes"] == 0)
    assert node.fetch(NUMBERS) == ALL
    other = make_node("two", **options)
    assert sum(bool(one) for one in other.fetch(NUMBERS)) == 4
    # One that has no room to come is a miss.
    last = make_node("three", shared_buffer=2 * BUFFER_BYTES)
    assert sum(bool(one) for one in last.fetch(NUMBERS)) == 2
    assert last.tier["skipped_loads"] == 2


def test_what_came_here_since_its_lookup_is_loaded_from_here(
    make_node: MakeNode, redis: Redis
) -> None:
    first, second = make_node("first"), make_node("second")
    first.share()
    # A request that has only looked; then another that loads.
    assert second.lookup(NUMBERS) == ALL
    assert second.fetch(NUMBERS) == ALL
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    redis.stop()
    assert second.fetch(NUMBERS) == ALL
    redis.resume()
    second.unlock(NUMBERS)
    assert second.adapter.report_status()["locked_keys"] == 0
    assert not second.adapter._locks


def test_a_find_is_over_after_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("kvring.shared_tier.key_locks.time", clock)
    locks, there = KeyLocks(), Sidecar(1, 2, 3)
    (key,) = keys_of([1])
    locks.note([(key, None), (key, there)])
    now_s = 599.0
    assert locks.newest(key) == there
    now_s = 600.0
    assert locks.newest(key) is None
    locks.note([(key, there)])
    assert [locks.unlock(key), locks.unlock(key)] == [False, True]
    for number in range(100_000):
        now_s += 1.0
        locks.note([(keys_of([number])[0], there)])
    assert len(locks) < 10_000


def test_memory_of_a_store_is_not_given_back_before_it_is_copied(make_node: MakeNode) -> None:
    first, second = make_node("first"), make_node("second")
    may_go_on = threading.Event()

    def wait() -> None:
        may_go_on.wait()

    first.adapter._tier._inbox.post(wait)
    objects = [filled_memory(content_of(number)) for number in NUMBERS]
    task = first.adapter.submit_store_task(keys_of(NUMBERS), objects)

    def is_on_disk() -> bool:
        assert first.adapter.pop_completed_store_tasks() == {}, "it is not copied yet"
        return task in first.adapter._stored

    try:
        until("it is on disk", is_on_disk)
    finally:
        may_go_on.set()
    results: dict[int, Any] = {}

    def is_complete() -> bool:
        results.update(first.adapter.pop_completed_store_tasks())
        return task in results

    until("it is complete", is_complete)
    for one in objects:
        one.raw_data.fill_(0xEE)
    stored_in(first, len(NUMBERS))
    assert second.fetch(NUMBERS) == ALL


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "'shared_tier' = None"),
        ({"shared_tier": "redis://host"}, "'shared_tier' = 'redis://host'"),
        ({"shared_tier": {}}, "missing 'type' field"),
        ({"shared_tier": {"type": "nothing"}}, "unknown adapter type 'nothing'"),
        ({"shared_tier": {"type": "resp"}}, "host must be"),
        ({"shared_tier": {"type": "p2p"}}, "LMCache makes that one itself"),
        ({"shared_tier": {"type": "plugin"}}, "a second --l2-adapter"),
        ({"shared_bufer": "1GiB"}, "unknown option 'shared_bufer'; those of a shared tier are: "),
        (
            {"shared_tier": {"type": "fs", "base_path": "/x", "serde": {}}},
            "beside 'adapter_params'",
        ),
        ({"shared_buffer": "12 parsecs"}, "'shared_buffer' = '12 parsecs'"),
        ({"shared_lookup_deadline_ms": 0}, "'shared_lookup_deadline_ms' = 0"),
        ({"shared_load_deadline_ms": "soon"}, "'shared_load_deadline_ms' = 'soon'"),
        ({"shared_load_deadline_ms": True}, "'shared_load_deadline_ms' = True"),
        ({"shared_checksums": True}, "'shared_checksums' = True"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(options: dict[str, Any], told: str) -> None:
    own = {} if not options or "shared_tier" in options else {"shared_tier": MOCK}
    parameters = {"path": "/x", "capacity": "1GiB", **own, **options}
    with pytest.raises(kvring.ConfigError, match=re.escape(told)):
        KvringSharedL2AdapterConfig.from_dict(parameters)


def test_a_shared_tier_without_its_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kvring.ConfigError, match="KvringSharedL2Adapter"):
        KvringL2Adapter({"path": str(tmp_path / "one"), "capacity": "1GiB", "shared_tier": MOCK})
    assert not (tmp_path / "one").exists()
