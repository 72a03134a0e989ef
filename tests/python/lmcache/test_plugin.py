"""kvring as LMCache's `plugin` adapter: what LMCache is told of it, and what it does."""

import logging
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import BLOCK_BYTES, MIB, until
from tests.python.faulty_device import faulty_device
from tests.support.adapter_spec import AdapterSpec, adapter_spec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryFormat

from kvring.lmcache import KvringL2Adapter, KvringL2AdapterConfig
from tests.python.lmcache.adapter_driver import (
    AdapterDriver,
    RecordingListener,
    chunks_in,
    filled_memory,
    make_key,
    metadata_of,
    random_bytes,
)

pytestmark = pytest.mark.lmcache

CHUNK_BYTES = 522_240


@pytest.fixture
def adapter_name() -> str:
    """The one adapter that these tests are about."""
    return "plugin"


@pytest.fixture
def driver(spec: AdapterSpec) -> Iterator[AdapterDriver]:
    """A fresh adapter over an empty store."""
    driver = AdapterDriver(spec)
    yield driver
    driver.close()


def allocated(sizes_bytes: list[int]) -> int:
    """What chunks take on disk."""
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes_bytes)


def some(count: int, first: int = 0, **fields: str) -> list[ObjectKey]:
    return [make_key(number, **fields) for number in range(first, first + count)]


def test_chunks_come_back_and_lmcache_hears_of_them(driver: AdapterDriver) -> None:
    sizes = [1, 511, 4095, 4096, 4097, CHUNK_BYTES, 2 * MIB]
    keys = some(len(sizes))
    contents = [random_bytes(size, seed) for seed, size in enumerate(sizes)]
    assert driver.lookup(keys) == [False] * len(sizes)
    assert driver.store(keys, contents)
    assert driver.lookup([*keys, make_key(99)]) == [True] * len(sizes) + [False]
    assert driver.load_bytes(keys, sizes) == contents
    heard = driver.listener
    until("the news", lambda: len(heard.accessed) == len(keys))
    assert sorted(heard.stored, key=lambda one: one[1]) == list(zip(keys, sizes, strict=True))
    assert heard.accessed == keys
    assert driver.used_bytes() == allocated(sizes)
    # Its orders of eviction must see the second store too, or a busy chunk would look idle.
    assert driver.store(keys[:1], contents[:1])
    until("the second store", lambda: heard.accessed == [*keys, keys[0]])
    driver.adapter.delete(keys[2:])
    assert set(heard.deleted) == set(keys[2:])
    assert driver.used_bytes() == allocated(sizes[:2])
    assert driver.lookup(keys) == [True] * 2 + [False] * (len(sizes) - 2)


@pytest.mark.parametrize("kind", ["plugin", "native_plugin"])
def test_an_engine_sees_no_chunk_of_another_identity(data_directory: Path, kind: str) -> None:
    keys, content = some(3), random_bytes(CHUNK_BYTES, 1)
    for identity in ("fp8", "bf16"):
        engine = AdapterDriver(adapter_spec(kind, data_directory, identity=identity))
        assert engine.lookup(keys) == [False] * 3
        assert engine.store(keys, [content] * 3)
        assert engine.load_bytes(keys, [CHUNK_BYTES] * 3) == [content] * 3
        engine.close()
    engine = AdapterDriver(adapter_spec("plugin", data_directory, identity="fp8"))
    heard = engine.listener
    # Its lists and its books have its own alone, under the names that LMCache knows.
    until("the news", lambda: len(heard.stored) == 3)
    assert {key for key, _ in heard.stored} == set(keys)
    listed = engine.adapter.list_l2_keys("test/model").entries
    assert {entry.key.to_object_key() for entry in listed} == set(keys)
    assert engine.used_bytes() == 3 * allocated([CHUNK_BYTES])
    engine.adapter.delete(keys)
    assert engine.lookup(keys) == [False] * 3
    assert engine.adapter.list_l2_keys().entries == ()
    assert engine.used_bytes() == 0
    engine.close()


def test_what_is_stored_before_is_on_the_books(spec: AdapterSpec, driver: AdapterDriver) -> None:
    """Oldest first, as LMCache's orders take a batch from its end."""
    sizes = [1000 * number for number in range(1, 41)]
    keys = some(len(sizes))
    for key, size in zip(keys, sizes, strict=True):
        assert driver.store([key], [bytes(size)])
        time.sleep(0.002)
    driver.adapter.submit_touch(keys[3:4])
    used = driver.used_bytes()
    driver.close()
    reopened = AdapterDriver(spec)
    try:
        assert reopened.used_bytes() == used == allocated(sizes)
        heard = reopened.listener
        until("the news", lambda: len(heard.stored) == len(keys))
        in_order = [key for key, _ in reversed(heard.stored)]
        assert in_order == [*keys[:3], *keys[4:], keys[3]]
        assert dict(heard.stored) == dict(zip(keys, sizes, strict=True))
        late = RecordingListener()
        reopened.adapter.register_listener(late)
        assert sorted(late.stored, key=lambda one: one[1]) == list(zip(keys, sizes, strict=True))
        reopened.adapter.delete(keys[:10])
        assert set(heard.deleted) == set(late.deleted) == set(keys[:10])
    finally:
        reopened.close()


def test_a_delete_leaves_what_a_lookup_has_locked(driver: AdapterDriver) -> None:
    keys = some(4)
    contents = [random_bytes(CHUNK_BYTES, seed) for seed in range(4)]
    assert driver.store(keys, contents)
    adapter = driver.adapter
    for _ in range(2):
        task = adapter.submit_lookup_and_lock_task([*keys[:2], make_key(9)], {})
        # It is answered already, once.
        assert adapter.query_lookup_and_lock_result(task).popcount() == 2
        assert adapter.query_lookup_and_lock_result(task) is None
    assert adapter.report_status()["locked_keys"] == 2
    adapter.delete(keys)
    assert driver.load_bytes(keys, [CHUNK_BYTES] * 4) == [*contents[:2], None, None]
    adapter.submit_unlock([*keys[:2], keys[0], make_key(9)])
    adapter.delete(keys)
    assert driver.load_bytes(keys, [CHUNK_BYTES] * 4) == [None, contents[1], None, None]
    adapter.submit_unlock(keys)
    adapter.delete(keys)
    assert driver.used_bytes() == adapter.report_status()["locked_keys"] == 0


def test_what_a_lookup_locks_beside_a_delete_is_stored(driver: AdapterDriver) -> None:
    keys, adapter = some(1000), driver.adapter
    contents = [b"content"] * len(keys)
    hits = 0
    for _ in range(30):
        assert driver.store(keys, contents)
        # One by one, so that the lookups come between them.
        deletes = threading.Thread(target=lambda: [adapter.delete([key]) for key in keys])
        deletes.start()
        found = []
        for key in reversed(keys):
            task = adapter.submit_lookup_and_lock_task([key], {})
            if adapter.query_lookup_and_lock_result(task).popcount() == 1:
                found.append(key)
        deletes.join()
        loaded = driver.load_bytes(found, [len(b"content")] * len(found))
        assert loaded.count(None) == 0, f"of {len(found)}"
        hits += len(found)
        adapter.submit_unlock(found)
    assert hits > 0
    assert adapter.report_status()["locked_keys"] == 0


def test_keys_are_listed_by_pages(driver: AdapterDriver) -> None:
    by_model = {
        "one/model": some(30, model="one/model", salt="tenant"),
        "other": some(25, model="other"),
    }
    for keys in by_model.values():
        assert driver.store(keys, [bytes(100 + number) for number in range(len(keys))])
    for model, expected in [
        *by_model.items(),
        (None, [*by_model["one/model"], *by_model["other"]]),
    ]:
        listed: list[Any] = []
        cursor = None
        while True:
            page = driver.adapter.list_l2_keys(model, page_size=7, cursor=cursor)
            listed += page.entries
            cursor = page.next_page_token
            assert len(page.entries) == 7 or cursor is None
            if cursor is None:
                break
        assert len(listed) == len(expected)
        found = {entry.key.to_object_key(): entry.size_bytes for entry in listed}
        assert set(found) == set(expected)
        assert all(
            size == 100 + int.from_bytes(key.chunk_hash, "big") for key, size in found.items()
        )
    assert driver.adapter.list_l2_keys("another").entries == ()
    with pytest.raises(ValueError, match="page_size = 0"):
        driver.adapter.list_l2_keys(page_size=0)
    for cursor in ("-1", "", "x", "1" * 20):
        with pytest.raises(ValueError, match=f"cursor = '{cursor}'"):
            driver.adapter.list_l2_keys(cursor=cursor)
    assert driver.adapter.list_l2_keys(cursor="9" * 19).entries == ()


def test_status(driver: AdapterDriver) -> None:
    assert driver.store(some(4), [bytes(CHUNK_BYTES)] * 4)
    driver.lookup(some(8))
    status = driver.adapter.report_status()
    assert status["is_healthy"]
    assert status["problems"] == []
    assert (status["keys"], status["stored_bytes"]) == (4, 4 * CHUNK_BYTES)
    assert (status["lookup_hit_ratio"], status["load_hit_ratio"]) == (0.5, None)
    assert [path["in_use"] for path in status["paths"]] == [True]
    driver.close()
    assert driver.adapter.get_usage().total_bytes_used == 0
    assert driver.adapter.report_status()["keys"] == 4


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Have a handler of the application raise at every warning, and list what reaches no caller."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: unraisable.append(one.exc_value))

    class Handler(logging.Handler):
        """Has no room for a message."""

        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("kvring").addHandler(handler)
    yield unraisable
    logging.getLogger("kvring").removeHandler(handler)


@pytest.mark.parametrize("takes", ["stores", "loads"])
def test_a_handler_that_raises_costs_no_completion(
    make_spec: Callable[..., AdapterSpec], raised: list[object], takes: str
) -> None:
    """LMCache's L1 would stay locked. The first chunk that is too long is logged by who takes."""
    driver = AdapterDriver(make_spec("64MiB"))
    try:
        assert driver.store(some(1), [b"content"])
        too_long = [filled_memory(bytes(80 * MIB))]
        task = driver.adapter.submit_store_task(some(1, first=1), too_long)
        if takes == "loads":
            assert driver.load_bytes(some(1), [7]) == [b"content"]
        until("the store", lambda: driver._take_store_result(task) is not None)
        assert len(raised) == 1
    finally:
        driver.close()


def test_options_that_do_not_fit_are_refused(data_directory: Path) -> None:
    with pytest.raises(kvring.ConfigError, match="capacity_gb"):
        AdapterDriver(adapter_spec("plugin", data_directory / "store", capacity_gb=3))
    assert "lease_s" in KvringL2AdapterConfig.help()


def test_bytes_that_python_holds_are_stored(driver: AdapterDriver) -> None:
    content = random_bytes(CHUNK_BYTES, 1)
    metadata = metadata_of(CHUNK_BYTES, fmt=MemoryFormat.BINARY_BUFFER)
    memory = BytesBufferMemoryObj(content, metadata)
    task = driver.adapter.submit_store_task(some(1), [memory])
    until("the store", lambda: driver._take_store_result(task) is not None)
    assert driver.load_bytes(some(1), [CHUNK_BYTES]) == [content]
    with pytest.raises(kvring.SubmitError, match="read-only"):
        driver.adapter.submit_load_task(some(1), [memory])


@pytest.mark.parametrize(
    ("shares", "stable"), [(False, 8), (False, 4), (False, None), (True, None)]
)
def test_l1_memory_is_registered(
    spec: AdapterSpec, shares: bool, stable: int | None, tmp_path: Path
) -> None:
    """All of it, or what is there for good; shared memory too, of which LMCache tells nothing."""
    length = 8 * MIB
    with (
        Path("/dev/shm/kvring-test-l1").open("w+b")
        if shares
        else (tmp_path / "x").open("w+b") as file
    ):
        file.truncate(length)
        memory = mmap.mmap(file.fileno() if shares else -1, length)
        Path("/dev/shm/kvring-test-l1").unlink(missing_ok=True)
        arena = torch.frombuffer(memory, dtype=torch.uint8)
        stable_bytes = None if stable is None else stable * MIB
        description = L1MemoryDesc(arena.data_ptr(), length, 4096, stable_bytes)
        adapter = KvringL2Adapter(
            KvringL2AdapterConfig.from_dict(spec["adapter_params"]), l1_memory_desc=description
        )
        try:
            arena.random_(generator=torch.Generator().manual_seed(1))
            before = arena.clone()
            objects, keys = chunks_in(arena, MIB, MIB, range(8)), some(8)
            adapter.submit_store_task(keys, objects)
            until("the store", lambda: bool(adapter.pop_completed_store_tasks()))
            arena.zero_()
            task = adapter.submit_load_task(keys, objects)
            until("the load", lambda: adapter.query_load_result(task) is not None)
            assert torch.equal(arena, before)
            status = adapter.report_status()
            if "io_uring" in status["engine"]:
                expected = length if shares else (stable_bytes or 0)
                assert status["registered_bytes"] == expected
        finally:
            adapter.close()
        assert adapter.report_status()["registered_bytes"] == 0


@pytest.mark.parametrize("fails_at", ["stored", "deleted"])
def test_a_listener_that_raises_costs_the_others_no_news(
    driver: AdapterDriver, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """Some runs of news are told one after the other; one that fails leaves the next."""
    adapter, heard = driver.adapter, driver.listener
    until("it listens", lambda: adapter._books._has_recovered)
    told = getattr(heard, f"on_l2_keys_{fails_at}")

    def fail_once(*news: Any) -> None:
        monkeypatch.setattr(heard, f"on_l2_keys_{fails_at}", told)
        raise RuntimeError("no")

    keys = some(4)
    # Nobody takes news meanwhile, so that there are several runs of them.
    with adapter._books._lock:
        assert driver.store(keys[:1], [b"content"])
        assert driver.store(keys[:1], [b"contents"])
        adapter._store.purge("test/model")
        assert driver.store(keys[1:], [b"content"] * 3)
        monkeypatch.setattr(heard, f"on_l2_keys_{fails_at}", fail_once)
    until("the news", lambda: set(keys[1:]) <= {key for key, _ in heard.stored})
    driver.adapter.delete(keys)
    assert set(keys[1:]) <= set(heard.deleted)


@pytest.mark.root
def test_health_follows_the_device(tmp_path: Path) -> None:
    with faulty_device(tmp_path, 256 * MIB) as device:
        driver = AdapterDriver(adapter_spec("plugin", device.path, "all", lease_s=0))
        try:
            assert driver.store(some(8), [bytes(CHUNK_BYTES)] * 8)
            assert driver.adapter.report_status()["is_healthy"]
            for kind in ("read", "write"):
                device.fail(kind)
                if kind == "read":
                    driver.load_bytes(some(8), [CHUNK_BYTES] * 8)
                else:
                    driver.store(some(4, first=20), [random_bytes(CHUNK_BYTES, 1)] * 4)
                status = driver.adapter.report_status()
                assert not status["is_healthy"]
                assert f"{kind}s" in " ".join(status["problems"])
                (path,) = status["paths"]
                assert "Input/output error" in path["last_error"]
                device.mend()

                def works_again() -> bool:
                    driver.store(some(1, first=30), [random_bytes(CHUNK_BYTES, time.time_ns())])
                    driver.load_bytes(some(1, first=30), [CHUNK_BYTES])
                    return bool(driver.adapter.report_status()["is_healthy"])

                until("the health", works_again)
        finally:
            driver.close()
