"""The examples do what they say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY

EXPECTED = {
    "from_python.py": [
        "stored: [True, True, True]",
        "found after a restart: [True, True, True, False]",
        "equal: True",
        "missed: None",
    ],
    "tenants.py": [
        "meta-llama/Llama-3.1-8B-Instruct@small: 8 chunks of 32, quota 8388608",
        "meta-llama/Llama-3.1-8B-Instruct@large: 32 chunks of 32, quota None",
        "removed: 32",
        "left: ['meta-llama/Llama-3.1-8B-Instruct@small']",
    ],
}


SHARED = {"shared_redis": ["redis-server"], "shared_s3": ["s3s-fs"]}
SHARED_EXPECTED = [
    "node a stored 32 chunks, and shared them",
    "node b, empty, found 32 in the shared tier, equal, and kept them",
    # Two passes over all.
    "node b found 64 on its own disk, equal, with node a killed",
]


def test_all_of_them_are_here() -> None:
    examples = REPOSITORY / "examples"
    assert {path.name for path in examples.glob("*.py")} == set(EXPECTED)
    assert {path.parent.name for path in examples.glob("*/__main__.py")} == set(SHARED)


@pytest.mark.slow
@pytest.mark.lmcache
@pytest.mark.parametrize("name", SHARED)
def test_two_nodes_share_a_tier(name: str, tmp_path: Path) -> None:
    pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")
    for program in SHARED[name]:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    if name == "shared_s3" and not list(Path("/usr/lib").glob("*/libnss_wrapper.so")):
        pytest.skip("there is no libnss_wrapper.so")
    ended = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", str(tmp_path / "nodes")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * HANG_DEADLINE_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == SHARED_EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_it_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / name), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_DEADLINE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == sorted(EXPECTED[name])
