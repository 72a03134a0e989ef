"""What a store does in a container with little memory."""

import os
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    BLOCK_BYTES,
    HANG_DEADLINE_S,
    MIB,
    REPOSITORY,
    Client,
    child_command,
)

_ROOT = Path("/sys/fs/cgroup")
# Controllers of version 1, and what they are called in version 2.
_NAMES = {"memory": "memory", "blkio": "io"}

pytestmark = pytest.mark.root


@contextmanager
def control_group(controller: str, limits: Mapping[int, Mapping[str, str]]) -> Iterator[Path]:
    """Make a group with these limits, by the version of control groups and the file."""
    for version, parent in ((1, _ROOT / controller), (2, _ROOT)):
        listed = parent / "cgroup.controllers"
        if version == 2 and (not listed.exists() or _NAMES[controller] not in listed.read_text()):
            continue
        group = parent / f"kvring-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, value in limits[version].items():
                (group / name).write_text(value)
            yield group
        finally:
            # Its processes may take a moment to be gone.
            for _ in range(100):
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)
        return
    pytest.skip(f"there is no control group with the controller {controller} to be had")


def enter(group: str) -> None:
    """Move this process into a group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def run_in(group: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Call a function of this module, given the group first, in a new process."""
    function, *rest = arguments
    assert callable(function)
    return subprocess.run(
        child_command(function, str(group), *rest),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=4 * HANG_DEADLINE_S,
        check=False,
    )


KEYS = 200_000
BATCH = 1000


def fill_in_little_memory(group: str, directory: str) -> None:
    """Store and load chunks whose index and bytes are far more than the memory of the group."""
    enter(group)
    memory = bytearray(BATCH * BLOCK_BYTES)
    parts = [memoryview(memory)[at : at + BLOCK_BYTES] for at in range(0, len(memory), BLOCK_BYTES)]
    with kvring.Connector(directory, "2GiB", min_free=0) as connector:
        client = Client(connector)
        for first in range(0, KEYS, BATCH):
            keys = [f"key {number}" for number in range(first, first + BATCH)]
            for number, part in enumerate(parts, first):
                struct.pack_into("<Q", part, 0, number)
            client.wait(connector.submit_batch_set(keys, parts))
        for first in range(0, KEYS, BATCH):
            keys = [f"key {number}" for number in range(first, first + BATCH)]
            memory[:] = bytes(len(memory))
            assert all(client.wait(connector.submit_batch_get(keys, parts)).results)
            for number, part in enumerate(parts, first):
                assert struct.unpack_from("<Q", part)[0] == number
        assert connector.check()["problems"] == []


@pytest.mark.slow
def test_an_index_larger_than_the_memory_of_the_container_is_no_trouble(
    store_directory: Path,
) -> None:
    limit = str(100 * MIB)
    limits = {1: {"memory.limit_in_bytes": limit}, 2: {"memory.max": limit}}
    with control_group("memory", limits) as group:
        ended = run_in(group, fill_in_little_memory, str(store_directory))
        assert (ended.returncode, ended.stderr) == (0, "")
        if (group / "memory.failcnt").exists():
            assert int((group / "memory.failcnt").read_text()) > 0, "it was never short of memory"
