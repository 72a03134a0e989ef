"""The examples do what they say."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY

EXPECTED = {
    "from_python.py": [
        "found after a restart: [True, True, True, False]",
        "loaded: [True, True, True]",
        "equal: True",
        "bytes: 32768",
        "missed: None",
    ],
    "tenants.py": [
        "meta-llama/Llama-3.1-8B-Instruct@small: 8 chunks of 32, quota 8388608",
        "meta-llama/Llama-3.1-8B-Instruct@large: 32 chunks of 32, quota None",
        "removed: 32",
        "left: ['meta-llama/Llama-3.1-8B-Instruct@small']",
    ],
}


OWN_NAMESPACES = "each node has a network namespace of its own"
# What they say first where something is missing.
MISSING = "there is no "
_SHARED = [
    "node a stored 32 chunks, and shared them",
    "node b, empty, found all of them in the shared tier, equal, and kept them",
    # Two passes over all.
    "node b found 64 on its own disk, equal, with node a killed",
]
NODES = {
    "redis": _SHARED,
    "s3": _SHARED,
    "mooncake": _SHARED,
    "peers": [
        "nodes a and b are peers, by mooncake_te",
        "node a stored 32 chunks on its disk",
        "node b, empty, loaded 32 from the memory of node a, equal",
        "node b stored none of them on its disk",
        "node a, with its memory cleared, loaded 32 from its disk, equal",
        "node b loaded 32 from the memory of node a again, equal",
        "node b no longer asks node a, which was killed",
        "node b computed 32 itself, stored them, and loaded them from its disk, equal",
    ],
}
# Where make test has what peers read each other's memory with.
PEERS = REPOSITORY / ".venv" / "peers"


def test_all_of_them_are_here() -> None:
    examples = REPOSITORY / "examples"
    assert {path.name for path in examples.glob("*.py")} == set(EXPECTED)
    assert {path.parent.name for path in examples.glob("*/__main__.py")} == {
        "quickstart",
        "two_nodes",
        "gpu",
    }


@pytest.mark.slow
@pytest.mark.lmcache
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NODES)
def test_two_nodes(name: str, tmp_path: Path) -> None:
    pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")
    ended = subprocess.run(
        [sys.executable, "-m", "examples.two_nodes", name, str(tmp_path / "nodes")],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(PEERS)} if name == "peers" else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=14 * HANG_DEADLINE_S,
    )
    last = ended.stderr.splitlines()[-1:]
    if ended.returncode and last and last[0].startswith(MISSING):
        pytest.skip(last[0])
    assert ended.returncode == 0, ended.stderr
    where, *told = ended.stdout.splitlines()
    assert where == OWN_NAMESPACES or where.startswith("all nodes are processes of this machine: ")
    assert told == NODES[name]


@pytest.mark.parametrize("name", [*EXPECTED, "two_nodes", "gpu/stage.py", "quickstart/engine.py"])
def test_it_tells_how_it_is_started(name: str) -> None:
    program = name.removesuffix(".py").replace("/", ".")
    ended = subprocess.run(
        [sys.executable, "-m", f"examples.{program}"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_DEADLINE_S,
    )
    if find_spec("vllm") is None or name != "quickstart/engine.py":
        assert ended.returncode in (1, 2)
        assert "Traceback" not in ended.stderr
        assert f"examples.{program.partition('.')[0]}" in ended.stderr or "usage:" in ended.stderr


@pytest.mark.parametrize("name", EXPECTED)
def test_it_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    if name == "from_python.py":
        pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / name), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_DEADLINE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == sorted(EXPECTED[name])
