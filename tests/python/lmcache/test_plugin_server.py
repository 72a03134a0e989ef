"""What a real `lmcache server` says of kvring's `plugin` adapter."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.python.faulty_device import FaultyDevice, faulty_device
from tests.support.adapter_spec import AdapterSpec, adapter_spec

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from tests.support.bench_client import CHUNKS_PER_REQUEST
from tests.support.deployment import (
    FIRST_CLIENT_BLOCKS,
    LATER_CLIENT_BLOCKS,
    STORED_CHUNKS_METRIC,
    CacheServer,
)
from tests.support.two_nodes import stores_in

pytestmark = [pytest.mark.lmcache, pytest.mark.slow]

DEVICE_BYTES = 1 << 30
DEADLINE_S = 60.0
LOADS = 4


@pytest.fixture
def adapter_name() -> str:
    """The one adapter that these tests are about."""
    return "plugin"


def status_of(server: CacheServer) -> dict[str, Any]:
    """Return what the server says of its L2 adapter."""
    status = json.loads(server.fetch("/status"))
    adapters = stores_in(status)
    assert len(adapters) == 1, status
    return adapters[0]


def test_the_server_tells_of_it(tmp_path: Path, spec: AdapterSpec) -> None:
    """`/status`, `/cache/objects`, its metrics and its log, before and after a restart."""
    used: list[int] = []
    for number in range(2):
        log = tmp_path / f"server-{number}.log"
        with CacheServer(spec, log) as server:
            if number == 0:
                server.run_client(2, FIRST_CLIENT_BLOCKS)
                server.wait_for_metric(STORED_CHUNKS_METRIC, 2 * CHUNKS_PER_REQUEST)
            status = status_of(server)
            assert status["is_healthy"], status
            assert status["keys"] == 2 * CHUNKS_PER_REQUEST
            listed = json.loads(server.fetch("/cache/objects?tier=l2"))
            assert len(find_all("chunk_hash_hex", listed)) == 2 * CHUNKS_PER_REQUEST, listed
            used.append(server.metric("lmcache_mp_l2_usage_bytes"))
            server.stop()
        assert f"INFO kvring: {spec['adapter_params']['path']}" in log.read_text()
    assert used[0] == used[1] > 0


def find_all(name: str, tree: object) -> list[object]:
    """Return all values with a name in a tree of JSON."""
    own = [tree[name]] if isinstance(tree, dict) and name in tree else []
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return own + [found for child in children for found in find_all(name, child)]


def wait_for_health(server: CacheServer, is_healthy: bool) -> dict[str, Any]:
    """Return the adapter's status once its health is so."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (status := status_of(server))["is_healthy"] != is_healthy:
        assert time.monotonic() < deadline_s, json.dumps(status)
        time.sleep(0.1)
    return status


def load_until_health(server: CacheServer, is_healthy: bool) -> dict[str, Any]:
    """Have chunks loaded from L2 until the adapter's health is so; return its status."""
    for _ in range(LOADS):
        # A load that fails is followed by a store, which leaves the chunks in L1.
        server.clear_l1()
        run = server.run_client(1, FIRST_CLIENT_BLOCKS)
        status = status_of(server)
        if status["is_healthy"] == is_healthy:
            return status
    pytest.fail(f"after {LOADS} loads, of which the last one is {run}: {json.dumps(status)}")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FaultyDevice]:
    """A block device that fails when it is told to."""
    with faulty_device(tmp_path, DEVICE_BYTES) as device:
        yield device
        device.mend()


def test_the_status_follows_a_device_that_fails(tmp_path: Path, device: FaultyDevice) -> None:
    """Stores fail, and loads; each time it is well again when they work."""
    spec = adapter_spec("plugin", device.path, str(DEVICE_BYTES))
    with CacheServer(spec, tmp_path / "stores.log") as server:
        server.run_client(1, FIRST_CLIENT_BLOCKS)
        server.wait_for_metric(STORED_CHUNKS_METRIC, CHUNKS_PER_REQUEST)
        assert wait_for_health(server, is_healthy=True)["problems"] == []
        device.fail("write")
        # The second request is new, and its chunks are to be stored.
        server.run_client(2, LATER_CLIENT_BLOCKS)
        status = wait_for_health(server, is_healthy=False)
        assert any(str(device.path) in problem for problem in status["problems"]), status
        assert "Input/output error" in status["paths"][0]["last_error"]
        device.mend()
        server.run_client(3, FIRST_CLIENT_BLOCKS)
        assert wait_for_health(server, is_healthy=True)["problems"] == []
        server.stop()
    with CacheServer(spec, tmp_path / "loads.log") as server:
        assert status_of(server)["keys"] >= CHUNKS_PER_REQUEST
        device.fail("read")
        status = load_until_health(server, is_healthy=False)
        assert any(str(device.path) in problem for problem in status["problems"]), status
        device.mend()
        assert load_until_health(server, is_healthy=True)["problems"] == []
        server.stop()
