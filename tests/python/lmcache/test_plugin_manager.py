"""kvring's `plugin` adapter under the real StorageManager and server: LMCache's books."""

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.adapter_spec import AdapterSpec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import get_event_bus

from demo.bench_client import CHUNKS_PER_REQUEST
from demo.cache import CacheSession
from demo.deployment import FIRST_CLIENT_BLOCKS, STORED_CHUNKS_METRIC, CacheServer
from tests.python.lmcache.adapter_driver import AdapterDriver, make_key, random_bytes
from tests.python.lmcache.evicting_driver import EvictingDriver

pytestmark = pytest.mark.lmcache

MIB = 1 << 20
CHUNK_BYTES = MIB
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([CHUNK_BYTES])], dtypes=[torch.uint8])
L1_BYTES = 256 * MIB
DEADLINE_S = 60.0
OPERATION_COUNT = 100_000
BATCH_KEYS = 100
KEY_COUNT = 20_000


@pytest.fixture
def adapter_name() -> str:
    """The one adapter that these tests are about."""
    return "plugin"


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} does not come"
        time.sleep(0.01)


def with_eviction(spec: AdapterSpec, watermark: float, ratio: float = 0.2) -> AdapterSpec:
    """Switch LMCache's own eviction on."""
    eviction = {"eviction_policy": "LRU", "trigger_watermark": watermark, "eviction_ratio": ratio}
    return {**spec, "eviction": eviction}


def adapter_of(session: CacheSession) -> Any:
    ((_, adapter),) = session.manager.l2_adapters()
    return adapter


def order_of(session: CacheSession) -> list[ObjectKey]:
    """Return LMCache's order of eviction in L2, the first to go first."""
    (state,) = session.manager._l2_eviction_controller._adapter_states
    return list(state.eviction_policy.get_eviction_candidates(1 << 30))


def test_lmcache_evicts_the_oldest_recovered_keys_first(
    make_spec: Callable[..., AdapterSpec],
) -> None:
    keys = [make_key(number, salt="tenant" if number % 2 else "") for number in range(32)]
    stored = 0
    with CacheSession(make_spec("64MiB"), L1_BYTES) as session:
        for first in range(0, 32, 8):
            batch = keys[first : first + 8]
            with session.write(batch, LAYOUT) as tensors:
                for number, tensor in enumerate(tensors, first):
                    tensor.fill_(number)
            stored += 8
            session.wait_until_stored(stored)
        session.manager.delete_l1_keys(keys)
        # The first batch is used again.
        assert session.prefetch(keys[:8], LAYOUT) == [True] * 8
        with session.read(keys[:8]):
            pass
        used = adapter_of(session)._store.usage()
    # Its watermark is passed, so that it evicts in the first second.
    told: list[ObjectKey] = []
    spec = with_eviction(make_spec("64MiB", lease_s=0), watermark=0.9, ratio=0.25)
    with CacheSession(spec, L1_BYTES) as session:
        get_event_bus().subscribe(
            EventType.L2_KEYS_STORED, lambda event: told.extend(event.metadata["keys"])
        )
        adapter = adapter_of(session)
        usage = adapter.get_usage()
        assert usage.total_bytes_used == sum(one["allocated_bytes"] for one in used.values())
        assert usage.total_bytes_used == 32 * CHUNK_BYTES
        assert set(usage.bytes_by_cache_salt.values()) == {16 * CHUNK_BYTES}
        until("the recovered keys", lambda: len(order_of(session)) == 32)
        order = order_of(session)
        assert set(order[:24]) == set(keys[8:])
        assert set(order[24:]) == set(keys[:8])
        assert set(order[:8]) == set(keys[8:16])
        # Half of the capacity is in use: now it evicts.
        (state,) = session.manager._l2_eviction_controller._adapter_states
        state.eviction_config.trigger_watermark = 0.5
        until("the eviction", lambda: len(order_of(session)) == 24)
        found = session.prefetch(keys, LAYOUT)
        assert found == [True] * 8 + [False] * 8 + [True] * 16


class BookedDriver(EvictingDriver):
    """The plugin adapter, with LMCache's books of it and its own."""

    def books(self) -> set[ObjectKey]:
        """Return the keys that LMCache takes for stored."""
        return set(self.state.eviction_policy.get_eviction_candidates(1 << 30))

    def stored(self) -> set[ObjectKey]:
        """Return the keys that are."""
        keys: set[ObjectKey] = set()
        cursor = None
        while True:
            page = self.adapter.list_l2_keys(page_size=1000, cursor=cursor)
            keys |= {entry.key.to_object_key() for entry in page.entries}
            cursor = page.next_page_token
            if cursor is None:
                return keys


@pytest.fixture
def evicting(make_spec: Callable[..., AdapterSpec]) -> Iterator[BookedDriver]:
    """LMCache evicts at three quarters of what kvring holds."""
    driver = BookedDriver(with_eviction(make_spec("64MiB", lease_s=0, ttl=5), 0.75))
    yield driver
    driver.close()


def test_a_hundred_thousand_operations_leave_no_ghost(evicting: BookedDriver) -> None:
    """Stores, lookups, loads, both evictions and expiry: LMCache's books are kvring's."""
    choose = random.Random(1)
    contents = [random_bytes(choose.choice([4096, 9000, 20_000]), seed) for seed in range(50)]
    hits = 0
    for operations in range(0, OPERATION_COUNT, BATCH_KEYS):
        numbers = choose.sample(range(KEY_COUNT), BATCH_KEYS)
        keys = [make_key(number) for number in numbers]
        kind = choose.choice(["store", "store", "store", "lookup", "load"])
        if kind == "store":
            assert evicting.store(keys, [contents[number % 50] for number in numbers])
        elif kind == "lookup":
            evicting.lookup(keys)
        else:
            loaded = evicting.load_bytes(keys, [len(contents[number % 50]) for number in numbers])
            hits += sum(one is not None for one in loaded)
            for number, one in zip(numbers, loaded, strict=True):
                assert one in (None, contents[number % 50])
        # Now and then LMCache comes first, and now and then kvring.
        if operations % 20_000 > 10_000 and operations % 1000 == 0:
            evicting.evict()
    stats = evicting.adapter._store.stats()
    assert hits > 500
    assert stats["evicted"] > 1000
    assert stats["deleted"] > 1000
    until("the books", lambda: evicting.books() == evicting.stored())
    usage = evicting.adapter.get_usage()
    assert usage.total_bytes_used == stats["allocated_bytes"] or stats["expired"] > 0
    until("the expiry", lambda: evicting.stored() == set() == evicting.books())
    assert evicting.adapter.get_usage().total_bytes_used == 0
    assert evicting.adapter._store.check()["problems"] == []


@pytest.mark.slow
def test_the_server_tells_of_it(tmp_path: Path, spec: AdapterSpec) -> None:
    """`/status`, `/cache/objects`, its metrics and its log, before and after a restart."""
    used: list[int] = []
    for number in range(2):
        log = tmp_path / f"server-{number}.log"
        with CacheServer(spec, log) as server:
            if number == 0:
                server.run_client(2, FIRST_CLIENT_BLOCKS)
                server.wait_for_metric(STORED_CHUNKS_METRIC, 2 * CHUNKS_PER_REQUEST)
            status = json.loads(server._get("/status"))
            adapters = find("type", "kvring", status)
            assert len(adapters) == 1, status
            assert adapters[0]["is_healthy"]
            assert adapters[0]["keys"] == 2 * CHUNKS_PER_REQUEST
            listed = json.loads(server._get("/cache/objects?tier=l2"))
            assert len(find_all("chunk_hash_hex", listed)) == 2 * CHUNKS_PER_REQUEST, listed
            used.append(server.metric("lmcache_mp_l2_usage_bytes"))
            server.stop()
        assert f"INFO kvring: {spec['adapter_params']['path']}" in log.read_text()
    assert used[0] == used[1] > 0


def find(name: str, value: object, tree: object) -> list[dict[str, Any]]:
    """Return the dicts in a tree of JSON that have this value."""
    own = [tree] if isinstance(tree, dict) and tree.get(name) == value else []
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return own + [found for child in children for found in find(name, value, child)]


def find_all(name: str, tree: object) -> list[object]:
    """Return all values with a name in a tree of JSON."""
    own = [tree[name]] if isinstance(tree, dict) and name in tree else []
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return own + [found for child in children for found in find_all(name, child)]


def test_events_reach_the_bus(spec: AdapterSpec) -> None:
    """The coordinator's directory hears of what was there before, though nobody evicts."""
    driver = AdapterDriver(spec)
    assert driver.store([make_key(1)], [b"content"])
    driver.close()
    told: list[Event] = []
    with CacheSession(spec, L1_BYTES) as session:
        for kind in (EventType.L2_KEYS_STORED, EventType.L2_KEYS_DELETED):
            get_event_bus().subscribe(kind, told.append)
        adapter = adapter_of(session)
        until("the news", lambda: len(told) >= 1)
        assert told[0].metadata["keys"] == [make_key(1)]
        assert (told[0].metadata["sizes"], told[0].metadata["backend"]) == ([7], "plugin")
        adapter._store.purge("test/model")
        until("the news", lambda: len(told) >= 2)
        assert told[1].event_type == EventType.L2_KEYS_DELETED
        assert told[1].metadata["keys"] == [make_key(1)]


def test_what_is_hot_in_l1_stays(make_spec: Callable[..., AdapterSpec]) -> None:
    """LMCache 0.5.7 tells adapters of it; in 0.5.6 nobody calls this."""
    with CacheSession(make_spec("64MiB", lease_s=0, eviction="lru"), L1_BYTES) as session:
        hot = [make_key(number) for number in range(4)]
        for first in range(0, 120, 4):
            batch = [make_key(number) for number in range(first, first + 4)]
            with session.write(batch, LAYOUT) as tensors:
                for number, tensor in enumerate(tensors, first):
                    tensor.fill_(number)
            session.wait_until_stored(first + 4)
            session.manager.delete_l1_keys(batch)
            if hasattr(session.manager, "touch_cached_keys"):
                session.manager.touch_cached_keys(hot)
            else:
                adapter_of(session).submit_touch(hot)
        assert session.prefetch(hot, LAYOUT) == [True] * 4
        assert adapter_of(session)._store.stats()["evicted"] > 50
