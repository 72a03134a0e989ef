"""kvring behind LMCache's NativeConnectorL2Adapter, made by LMCache's factory from JSON.

What holds for any L2 adapter is tried with the plugin adapter as well.
"""

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.adapter_spec import AdapterSpec, adapter_spec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")


from tests.python.lmcache.adapter_driver import DEADLINE_S, AdapterDriver, make_key, random_bytes
from tests.python.lmcache.conftest import ADAPTER_NAME

pytestmark = pytest.mark.lmcache

CHUNK_BYTES = 522_240  # a 255-token bf16 chunk: a multiple of 512 but not of 4096


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
