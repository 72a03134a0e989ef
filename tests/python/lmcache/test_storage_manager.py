"""LMCache's StorageManager in one process after the other must find again what it stored."""

import json
import subprocess
import sys

import pytest

from tests.support.adapter_spec import AdapterSpec
from tests.support.lmcache_command import lmcache_environment

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from tests.python.lmcache import storage_manager_worker as worker

pytestmark = [pytest.mark.lmcache, pytest.mark.slow]

PROCESS_DEADLINE_S = 240.0
ALL_CHUNKS = (
    len(worker.MODELS) * len(worker.SALTS) * len(worker.CHUNK_SIZES_BYTES) * worker.CHUNK_COUNT
)


@pytest.fixture(params=["plugin", "native_plugin"])
def adapter_name(request: pytest.FixtureRequest) -> str:
    """Both of kvring's adapters."""
    return str(request.param)


def run_worker(phase: str, spec: AdapterSpec) -> dict[str, int]:
    finished = subprocess.run(
        [sys.executable, worker.__file__, phase, json.dumps(spec)],
        env=lmcache_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROCESS_DEADLINE_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    counts: dict[str, int] = json.loads(finished.stdout.splitlines()[-1])
    return counts


def test_all_chunks_survive_the_end_of_the_process(spec: AdapterSpec) -> None:
    assert run_worker("write", spec) == {"stored": ALL_CHUNKS}
    assert run_worker("read", spec) == {
        "hits": ALL_CHUNKS,
        "equal": ALL_CHUNKS,
        "false_hits": 0,
        "read_locked": 0,
        "write_locked": 0,
    }
