"""kvring behind LMCache's NativeConnectorL2Adapter, made by LMCache's factory from JSON.

What holds for any L2 adapter is tried with the plugin adapter as well.
"""

import json
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.lmcache_command import lmcache_environment

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")


from tests.python.lmcache.adapter_driver import (
    DEADLINE_S,
    AdapterDriver,
    bytes_of,
    filled_memory,
    make_key,
    random_bytes,
)
from tests.python.lmcache.conftest import ADAPTER_NAME

pytestmark = pytest.mark.lmcache

CHUNK_BYTES = 522_240  # a 255-token bf16 chunk: a multiple of 512 but not of 4096
THREAD_COUNT = 8


@pytest.fixture
def driver(spec: AdapterSpec) -> Iterator[AdapterDriver]:
    """A fresh adapter over an empty store."""
    driver = AdapterDriver(spec)
    yield driver
    driver.close()


@pytest.fixture(params=[ADAPTER_NAME, "plugin"])
def any_spec(request: pytest.FixtureRequest, data_directory: Path) -> AdapterSpec:
    """The JSON of either adapter, with room for all that a test stores."""
    return adapter_spec(request.param, data_directory / "store")


@pytest.fixture
def any_driver(any_spec: AdapterSpec) -> Iterator[AdapterDriver]:
    """Either adapter over an empty store."""
    driver = AdapterDriver(any_spec)
    yield driver
    driver.close()


def test_stored_chunks_are_found_and_loaded(driver: AdapterDriver) -> None:
    keys = [make_key(number) for number in range(4)]
    contents = [random_bytes(CHUNK_BYTES, seed) for seed in range(4)]
    assert driver.lookup(keys) == [False] * 4
    assert driver.store(keys, contents)
    assert driver.lookup(keys) == [True] * 4
    assert driver.load_bytes(keys, [CHUNK_BYTES] * 4) == contents
    assert driver.listener.stored == [(key, CHUNK_BYTES) for key in keys]
    assert driver.listener.accessed == keys


def test_keys_that_differ_in_one_field_are_different(any_driver: AdapterDriver) -> None:
    long_salt = "s" * 128
    keys = [
        make_key(1),
        make_key(2),
        make_key(1, model="test/model2"),
        make_key(1, salt="alice"),
        make_key(1, salt="bob"),
        make_key(1, salt=long_salt),
        make_key(1, model="m/" * 200 + "ünïcode", salt=long_salt),
    ]
    contents = [random_bytes(CHUNK_BYTES, seed) for seed in range(len(keys))]
    for key, content in zip(keys, contents, strict=True):
        assert any_driver.store([key], [content])
    assert any_driver.load_bytes(keys, [CHUNK_BYTES] * len(keys)) == contents
    assert any_driver.lookup([make_key(1, salt="carol"), make_key(3)]) == [False, False]


@pytest.mark.parametrize("other_size_bytes", [CHUNK_BYTES - 512, CHUNK_BYTES - 1, CHUNK_BYTES + 1])
def test_buffer_of_another_length_is_a_miss(
    any_driver: AdapterDriver, other_size_bytes: int
) -> None:
    assert any_driver.store([make_key(1)], [random_bytes(CHUNK_BYTES, 1)])
    untouched = random_bytes(other_size_bytes, 99)
    memory = filled_memory(untouched)
    assert any_driver.load([make_key(1)], [memory]) == [False]
    assert bytes_of(memory) == untouched


def test_storing_again_keeps_the_account_of_the_first_size(driver: AdapterDriver) -> None:
    key, content = make_key(1), random_bytes(CHUNK_BYTES, 1)
    assert driver.store([key], [content])
    assert driver.store([key], [content])
    assert driver.used_bytes() == CHUNK_BYTES
    assert driver.listener.stored == [(key, CHUNK_BYTES), (key, 0)]
    # Its eviction must see the second store too, or a busy chunk would look idle.
    assert driver.load_bytes([key], [CHUNK_BYTES]) == [content]
    driver.adapter.delete([key])
    assert driver.used_bytes() == 0


def test_deleted_keys_are_gone_and_off_the_account(driver: AdapterDriver) -> None:
    keys = [make_key(number) for number in range(4)]
    contents = [random_bytes(CHUNK_BYTES, seed) for seed in range(4)]
    assert driver.store(keys, contents)
    driver.adapter.delete(keys[:2])
    assert driver.listener.deleted == keys[:2]
    assert driver.used_bytes() == 2 * CHUNK_BYTES
    assert driver.lookup(keys) == [False, False, True, True]
    assert driver.load_bytes(keys, [CHUNK_BYTES] * 4) == [None, None, *contents[2:]]
    assert driver.store(keys[:2], contents[2:])
    assert driver.load_bytes(keys[:2], [CHUNK_BYTES] * 2) == contents[2:]


def test_deleting_absent_keys_returns_and_notifies_of_none(driver: AdapterDriver) -> None:
    present = make_key(1)
    assert driver.store([present], [random_bytes(CHUNK_BYTES, 1)])
    absent = [make_key(number) for number in range(2, 2002)]
    driver.adapter.delete(absent)
    assert driver.listener.deleted == []
    assert driver.used_bytes() == CHUNK_BYTES
    driver.adapter.delete([*absent, present])
    assert driver.listener.deleted == [present]
    assert driver.used_bytes() == 0
    # delete() also returns when it gives up after 30 s: then its event would still be waiting,
    # and the completion would find nobody.
    assert driver.adapter._pending_ops == {}


def test_keys_kept_from_before_a_restart_are_served_but_not_accounted(
    spec: AdapterSpec, driver: AdapterDriver
) -> None:
    keys = [make_key(number) for number in range(3)]
    contents = [random_bytes(CHUNK_BYTES, seed) for seed in range(3)]
    assert driver.store(keys, contents)
    driver.close()
    reopened = AdapterDriver(spec)
    try:
        assert reopened.lookup(keys) == [True] * 3
        assert reopened.load_bytes(keys, [CHUNK_BYTES] * 3) == contents
        assert reopened.used_bytes() == 0
        reopened.adapter.delete(keys[:1])
        assert reopened.lookup(keys) == [False, True, True]
    finally:
        reopened.close()


def test_overlapping_batches_from_many_threads(any_driver: AdapterDriver) -> None:
    sizes = [4096, 4097, CHUNK_BYTES, 65_536] * 8
    keys = [make_key(number) for number in range(len(sizes))]
    contents = [random_bytes(size_bytes, seed) for seed, size_bytes in enumerate(sizes)]
    start = threading.Barrier(THREAD_COUNT)

    def work(seed: int) -> int:
        choose = random.Random(seed)
        loaded_count = 0
        start.wait(DEADLINE_S)
        for _ in range(12):
            batch = choose.sample(range(len(keys)), 8)
            batch_keys = [keys[index] for index in batch]
            assert any_driver.store(batch_keys, [contents[index] for index in batch])
            any_driver.lookup(batch_keys)
            loaded = any_driver.load_bytes(batch_keys, [sizes[index] for index in batch])
            for index, content in zip(batch, loaded, strict=True):
                # Another thread may have deleted it meanwhile; wrong bytes it must never be.
                assert content is None or content == contents[index]
                loaded_count += content is not None
            any_driver.adapter.delete([keys[choose.choice(batch)]])
        return loaded_count

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        loaded_counts = list(pool.map(work, range(THREAD_COUNT)))
    # Deletes are few, so most loads must have hit.
    assert sum(loaded_counts) > THREAD_COUNT * 12 * 8 // 2
    any_driver.adapter.delete(keys)
    assert any_driver.lookup(keys) == [False] * len(keys)
    assert any_driver.used_bytes() == 0
    if hasattr(any_driver.adapter, "_pending_ops"):
        assert any_driver.adapter._pending_ops == {}


@pytest.mark.slow
def test_no_memory_is_touched_once_close_has_returned(data_directory: Path) -> None:
    # LMCache frees its memory right after; a late transfer would hit unmapped pages or, worse,
    # somebody else's. That is best tried where it may crash.
    spec = adapter_spec("plugin", data_directory / "store")
    worker = Path(__file__).with_name("unmapped_worker.py")
    finished = subprocess.run(
        [sys.executable, str(worker), json.dumps(spec)],
        env=lmcache_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.splitlines()[-1] == "no memory was touched"


@pytest.mark.skipif(ADAPTER_NAME != "native_plugin", reason="these are options of kvring")
@pytest.mark.parametrize(
    "options",
    [
        {"layout": "files", "engine": "posix", "durability": "persistent"},
        {"path": ["disk0", "disk1"], "capacity": ["1GiB", "2GiB"]},
    ],
    ids=str,
)
def test_every_kind_of_store_serves_it_across_a_restart(
    any_spec: AdapterSpec, data_directory: Path, options: dict[str, Any]
) -> None:
    if "path" in options:
        options = {**options, "path": [str(data_directory / name) for name in options["path"]]}
    any_spec["adapter_params"] |= options
    # As it comes from a command line.
    spec = json.loads(json.dumps(any_spec))
    keys = [make_key(number) for number in range(60)]
    contents = [random_bytes(CHUNK_BYTES - number, number) for number in range(60)]
    for is_restarted in (False, True):
        driver = AdapterDriver(spec)
        if not is_restarted:
            assert driver.store(keys, contents)
            driver.adapter.delete(keys[50:])
        assert driver.lookup(keys) == [True] * 50 + [False] * 10
        sizes = [len(content) for content in contents]
        assert driver.load_bytes(keys, sizes) == contents[:50] + [None] * 10
        driver.close()


def test_a_delete_that_the_index_refuses_raises_nothing(any_driver: AdapterDriver) -> None:
    """LMCache's thread that evicts would end with it."""
    keys = [make_key(number) for number in range(3)]
    contents = [random_bytes(CHUNK_BYTES, seed) for seed in range(3)]
    assert any_driver.store(keys, contents)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The header alone: no record can be written any more.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for key in keys[:2]:
            any_driver.adapter.delete([key])
        assert any_driver.lookup(keys) == [False, True, True]
        assert any_driver.load_bytes(keys[1:], [CHUNK_BYTES] * 2) == contents[1:]
        assert not any_driver.store(keys[:1], contents[:1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    deadline = time.monotonic() + DEADLINE_S
    while not any_driver.store(keys[:1], contents[:1]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    any_driver.adapter.delete(keys)
    assert any_driver.lookup(keys) == [False] * 3
