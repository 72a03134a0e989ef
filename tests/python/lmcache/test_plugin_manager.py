"""kvring's `plugin` adapter under the real StorageManager: LMCache's books."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.adapter_spec import AdapterSpec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import get_event_bus

import kvring
from tests.python.conftest import Client, pattern, until
from tests.python.lmcache.adapter_driver import AdapterDriver, make_key
from tests.support.caches import CacheSession

pytestmark = pytest.mark.lmcache

MIB = 1 << 20
CHUNK_BYTES = MIB
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([CHUNK_BYTES])], dtypes=[torch.uint8])
L1_BYTES = 256 * MIB
OPERATION_COUNT = 40_000
BATCH_KEYS = 100
KEY_COUNT = 20_000
SMALL_CHUNK_BYTES = 16 << 10


@pytest.fixture
def adapter_name() -> str:
    """The one adapter that these tests are about."""
    return "plugin"


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


@pytest.mark.parametrize(
    ("others_key", "options"),
    [("test/model@00000000@0@{:032x}", {"identity": "fp8"}), ("own-{}", {})],
    ids=["another identity", "keys of another form"],
)
def test_lmcache_evicts_nothing_for_chunks_that_it_is_not_told_of(
    data_directory: Path,
    make_spec: Callable[..., AdapterSpec],
    others_key: str,
    options: dict[str, str],
) -> None:
    # They alone pass the watermark.
    with kvring.Connector(data_directory / "store", "64MiB", **options) as connector:
        others = {others_key.format(number): pattern(MIB, number) for number in range(48)}
        Client(connector).store(others)
    keys = [make_key(number) for number in range(4)]
    identity = {"identity": "bf16"} if options else {}
    spec = with_eviction(make_spec("64MiB", lease_s=0, **identity), watermark=0.5, ratio=0.5)
    with CacheSession(spec, L1_BYTES) as session:
        with session.write(keys, LAYOUT) as tensors:
            for tensor in tensors:
                tensor.fill_(1)
        session.wait_until_stored(len(keys))
        session.manager.delete_l1_keys(keys)
        usage = adapter_of(session).get_usage()
        assert (usage.total_bytes_used, usage.total_capacity_bytes) == (4 * MIB, 64 * MIB)
        until("the books", lambda: len(order_of(session)) == len(keys))
        controller = session.manager._l2_eviction_controller
        (state,) = controller._adapter_states
        for _ in range(3):
            controller._check_and_evict(state)
        assert session.prefetch(keys, LAYOUT) == [True] * len(keys)


def stored_in(adapter: Any) -> set[ObjectKey]:
    """Return the keys that an adapter lists."""
    keys: set[ObjectKey] = set()
    cursor = None
    while True:
        page = adapter.list_l2_keys(page_size=1000, cursor=cursor)
        keys |= {entry.key.to_object_key() for entry in page.entries}
        cursor = page.next_page_token
        if cursor is None:
            return keys


def test_many_operations_leave_no_ghost(
    make_spec: Callable[..., AdapterSpec],
) -> None:
    """Stores, lookups, loads, both evictions and expiry: LMCache's books are kvring's."""
    choose = random.Random(1)
    layout = MemoryLayoutDesc(shapes=[torch.Size([SMALL_CHUNK_BYTES])], dtypes=[torch.uint8])
    # kvring is full long before LMCache looks again, which it does once a second.
    spec = with_eviction(make_spec("64MiB", lease_s=0, ttl=30), 0.75)
    stored = hits = 0
    with CacheSession(spec, L1_BYTES) as session:
        adapter = adapter_of(session)
        for _ in range(0, OPERATION_COUNT, BATCH_KEYS):
            numbers = choose.sample(range(KEY_COUNT), BATCH_KEYS)
            keys = [make_key(number) for number in numbers]
            if choose.random() < 0.6:
                with session.write(keys, layout) as tensors:
                    for number, tensor in zip(numbers, tensors, strict=True):
                        tensor.fill_(number % 251)
                stored += BATCH_KEYS
                session.wait_until_stored(stored)
            else:
                found = session.prefetch(keys, layout)
                held = [number for number, hit in zip(numbers, found, strict=True) if hit]
                hits += len(held)
                with session.read([make_key(number) for number in held]) as tensors:
                    for number, tensor in zip(held, tensors, strict=True):
                        assert bool((tensor == number % 251).all())
            session.manager.delete_l1_keys(keys)
        stats = adapter._store.stats()
        assert hits > 400
        assert stats["evicted"] > 1000
        # LMCache evicts once a second: how often depends on how fast this goes.
        assert stats["deleted"] > 100
        until("the books", lambda: set(order_of(session)) == stored_in(adapter))
        assert adapter._store.check()["problems"] == []
        until("the expiry", lambda: stored_in(adapter) == set(order_of(session)) == set())
        assert adapter.get_usage().total_bytes_used == 0


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


def test_an_lmcache_that_is_too_old_is_named(tmp_path: Path) -> None:
    package = tmp_path / "lmcache" / "v1" / "distributed"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parent.parent):
        (directory / "__init__.py").touch()
    (tmp_path / "lmcache" / "lmcache_native.py").write_text("Bitmap = None\n", encoding="utf-8")
    (package / "api.py").touch()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", "import kvring.lmcache"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: kvring.lmcache needs LMCache 0.5.6 or newer, and LMCache")
    assert "native_plugin" in last
    assert "EncodedObjectKey" in last
