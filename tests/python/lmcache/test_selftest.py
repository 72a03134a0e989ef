"""`kvring selftest`: against real servers of LMCache."""

import json
from pathlib import Path

import pytest

from kvring.cli import main
from tests.support.adapter_spec import adapter_spec
from tests.support.deployment import CacheServer
from tests.support.machines import free_ports

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

pytestmark = [pytest.mark.lmcache, pytest.mark.slow]

STEPS = [
    "look up: a miss",
    "store in L1",
    "L1 to kvring",
    "drop from L1",
    "look up: kvring to L1",
    "load from L1",
]


def arguments(server: CacheServer) -> list[str]:
    rpc_url, http_url = server.urls
    return ["selftest", "--rpc", rpc_url, "--http", http_url]


def test_a_chunk_goes_through_and_comes_back(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = data_directory / "store"
    with CacheServer(adapter_spec("plugin", store), tmp_path / "log") as server:
        assert main([*arguments(server), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [step["step"] for step in told["steps"]] == STEPS
        assert (told["path"], told["chunk_bytes"]) == (str(store), 8 << 20)
        assert all(step["ms"] > 0 for step in told["steps"])
        # Another time as well, and nothing is left of it.
        assert main(arguments(server)) == 0
        assert f"8.0 MiB came back from kvring at {store}" in capsys.readouterr().out
        page = json.loads(server.fetch("/cache/objects?tier=l2"))
        assert page["entries"] == []
        (adapter,) = json.loads(server.fetch("/status"))["storage_manager"]["l2_adapters"]
        assert adapter["load_hit_ratio"] == 1
        rpc_url, _ = server.urls
        assert main(["selftest", "--http", rpc_url.replace("tcp", "http")]) == 1
        assert "no LMCache server answers at" in capsys.readouterr().err


def test_servers_without_kvring_are_told_apart(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--http", "--vllm"):
        assert main(["selftest", option, "localhost:8080"]) == 2
        assert "does not begin with http://" in capsys.readouterr().err
    (port,) = free_ports(1)
    assert main(["selftest", "--http", f"http://127.0.0.1:{port}"]) == 1
    assert "Connection refused; start `lmcache server`" in capsys.readouterr().err
    with CacheServer(None, tmp_path / "log") as server:
        assert main(arguments(server)) == 1
        assert "the server has no L2 adapter" in capsys.readouterr().err
    directory = data_directory / "files"
    directory.mkdir(parents=True)
    with CacheServer(adapter_spec("fs_native", directory), tmp_path / "log") as server:
        assert main(arguments(server)) == 1
        assert "not kvring's type plugin" in capsys.readouterr().err
