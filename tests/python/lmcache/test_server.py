"""The whole deployment: LMCache's server and its own client, before and after a restart."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvring.cli import main
from tests.support.adapter_spec import AdapterSpec
from tests.support.bench_client import CHUNKS_PER_REQUEST
from tests.support.deployment import (
    FIRST_CLIENT_BLOCKS,
    LATER_CLIENT_BLOCKS,
    LOADED_CHUNKS_METRIC,
    STORED_CHUNKS_METRIC,
    CacheServer,
    fresh_run_problems,
    restart_problems,
)
from tests.support.two_nodes import stores_in

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

pytestmark = [pytest.mark.lmcache, pytest.mark.slow]

REQUEST_COUNT = 4
CHUNK_COUNT = REQUEST_COUNT * CHUNKS_PER_REQUEST


@pytest.fixture
def spec(data_directory: Path) -> AdapterSpec:
    """The JSON that `kvring config` prints, as whoever has no Rust runs it."""
    command = [sys.executable, "-m", "kvring", "config", str(data_directory / "store"), "4GiB"]
    printed = subprocess.run(
        [*command, "--json"],
        env={"PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    spec: AdapterSpec = json.loads(printed.stdout)
    return spec


@pytest.fixture
def make_server(tmp_path: Path, spec: AdapterSpec) -> Iterator[Callable[[], CacheServer]]:
    """Build servers over one store, and print all their logs, which pytest shows on failure."""
    logs: list[Path] = []

    def build() -> CacheServer:
        logs.append(tmp_path / f"server-{len(logs)}.log")
        return CacheServer(spec, logs[-1])

    yield build
    for log in logs:
        if log.exists():
            print(f"--- {log.name}\n{log.read_text(errors='replace')}")


def test_everything_is_found_again_after_a_kill(
    make_server: Callable[[], CacheServer], tmp_path: Path
) -> None:
    """Also `/status`, `/cache/objects`, its metrics and its log tell of it."""
    with make_server() as server:
        first = server.run_client(REQUEST_COUNT, FIRST_CLIENT_BLOCKS)
        assert fresh_run_problems(first, REQUEST_COUNT) == []
        server.wait_for_metric(STORED_CHUNKS_METRIC, CHUNK_COUNT)
        used = server.metric("lmcache_mp_l2_usage_bytes")
        assert_tells_of_its_chunks(server)
        server.kill()
    with make_server() as server:
        later = server.run_client(REQUEST_COUNT, LATER_CLIENT_BLOCKS)
        assert restart_problems(first, later) == []
        # The hits came from L2, for the server's own memory was empty.
        server.wait_for_metric(LOADED_CHUNKS_METRIC, CHUNK_COUNT)
        assert server.metric(STORED_CHUNKS_METRIC) == 0
        assert server.metric("lmcache_mp_l2_usage_bytes") == used > 0
        assert_tells_of_its_chunks(server)
        # kvring's own, on the same page.
        assert server.metric("kvring_chunks") == CHUNK_COUNT
        assert server.metric("kvring_loads_total") >= CHUNK_COUNT
        server.stop()
    assert "INFO kvring: " in (tmp_path / "server-1.log").read_text()


def assert_tells_of_its_chunks(server: CacheServer) -> None:
    (status,) = stores_in(json.loads(server.fetch("/status")))
    assert status["is_healthy"], status
    assert status["keys"] == CHUNK_COUNT
    listed = server.fetch("/cache/objects?tier=l2")
    assert listed.count('"chunk_hash_hex"') == CHUNK_COUNT, listed


def test_vllm_is_told_where_the_server_listens(capsys: pytest.CaptureFixture[str]) -> None:
    from lmcache.v1.multiprocess.config import add_mp_server_args

    defaults = add_mp_server_args(argparse.ArgumentParser()).parse_args([])
    assert main(["config", "/mnt/nvme/kvring", "500GiB"]) == 0
    transfer = json.loads(shlex.split(capsys.readouterr().out.split("\n\n")[-1])[-1])
    extra = transfer["kv_connector_extra_config"]
    assert extra["lmcache.mp.host"] == f"tcp://{defaults.host}"
    assert extra["lmcache.mp.port"] == defaults.port
