"""LMCache's own L2 eviction on top of kvring's: both come down, neither goes round in circles."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.adapter_spec import AdapterSpec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from lmcache.v1.distributed.storage_controllers.eviction_controller import (
    L2AdapterEvictionState,
    L2EvictionController,
)

from tests.python.lmcache.adapter_driver import AdapterDriver, make_key, random_bytes
from tests.python.lmcache.conftest import ADAPTER_NAME

pytestmark = [
    pytest.mark.lmcache,
    pytest.mark.skipif(
        ADAPTER_NAME != "native_plugin", reason="only kvring has an eviction of its own"
    ),
]

MIB = 1 << 20
KVRING_BYTES = 64 * MIB
WATERMARK = 0.8


def with_l2_eviction(spec: AdapterSpec, max_capacity_gb: float) -> AdapterSpec:
    """Switch LMCache's own eviction on."""
    eviction = {"eviction_policy": "LRU", "trigger_watermark": WATERMARK, "eviction_ratio": 0.2}
    return {**spec, "max_capacity_gb": max_capacity_gb, "eviction": eviction}


class EvictingDriver(AdapterDriver):
    """An adapter and its controller from one specification, as LMCache makes them."""

    def __init__(self, spec: AdapterSpec) -> None:
        """Create both."""
        super().__init__(spec)
        assert self.config.eviction_config is not None
        self.state = L2AdapterEvictionState(0, self.adapter, self.config.eviction_config)
        self.controller = L2EvictionController([self.state])

    def evict(self) -> None:
        """Let LMCache look once, as it does every second."""
        self.controller._check_and_evict(self.state)

    def usage(self) -> float:
        """Return LMCache's account of how full the adapter is."""
        return float(self.adapter.get_usage().usage_fraction)

    def stats(self) -> dict[str, Any]:
        """Return kvring's counters."""
        stats: dict[str, Any] = self.adapter._client.stats()
        return stats

    def assert_sound(self) -> None:
        """Each delete was answered True, and brought LMCache's account down."""
        stats = self.stats()
        assert stats["deleted"] + stats["delete_absent"] == len(self.listener.deleted)
        assert self.adapter._client.check()["problems"] == []


@pytest.fixture
def driver(make_spec: Callable[..., AdapterSpec]) -> Iterator[EvictingDriver]:
    """LMCache counts up to 128 MiB, kvring holds half of that."""
    driver = EvictingDriver(with_l2_eviction(make_spec(str(KVRING_BYTES), lease_s=0), 0.125))
    yield driver
    driver.close()


def test_deletes_of_what_kvring_has_evicted_bring_the_account_down(driver: EvictingDriver) -> None:
    chunk_bytes = 256 << 10
    keys = [make_key(number) for number in range(480)]
    content = random_bytes(chunk_bytes, 1)
    for first in range(0, len(keys), 32):
        assert driver.store(keys[first : first + 32], [content] * 32)
    assert driver.usage() == len(keys) * chunk_bytes / (128 * MIB)
    assert driver.stats()["evicted"] > 200
    passes = 0
    while driver.usage() >= WATERMARK:
        before = driver.usage()
        driver.evict()
        assert driver.usage() < before
        passes += 1
    assert passes <= 2
    assert driver.stats()["delete_absent"] > 50
    assert len(set(driver.listener.deleted)) == len(driver.listener.deleted)
    driver.assert_sound()
    # Nothing is chosen again.
    deleted = len(driver.listener.deleted)
    driver.evict()
    assert len(driver.listener.deleted) == deleted
