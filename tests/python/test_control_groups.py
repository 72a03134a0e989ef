"""What a store does in a container: with little memory, and on a device that is throttled."""

import os
import signal
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
    bare_loop_device,
    child_command,
    pattern,
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


def take_all_memory(group: str, directory: str) -> None:
    """Store chunks and tell of them, with more and more of something else in memory."""
    enter(group)
    ballast = []
    client = Client(kvring.Connector(directory, "256MiB", min_free=0))
    for number in range(10_000):
        client.store({f"key {number}": pattern(MIB // 8, number)})
        print(number, flush=True)
        ballast.append(os.urandom(4 * MIB))


def test_what_was_answered_outlives_the_out_of_memory_killer(store_directory: Path) -> None:
    limit = str(160 * MIB)
    limits = {1: {"memory.limit_in_bytes": limit}, 2: {"memory.max": limit}}
    with control_group("memory", limits) as group:
        ended = run_in(group, take_all_memory, str(store_directory))
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    answered = [int(line) for line in ended.stdout.split()]
    assert answered
    with kvring.Connector(store_directory, "256MiB", min_free=0) as connector:
        client = Client(connector)
        for number in answered:
            assert client.load(f"key {number}", MIB // 8) == pattern(MIB // 8, number)


def load_beside_slow_stores(group: str, device: str) -> None:
    """Load a chunk while many are being stored on a device that takes its time."""
    client = Client(kvring.Connector(device, "all"))
    client.store({"before": pattern(MIB, 7)})
    enter(group)
    chunks = {f"key {number}": pattern(MIB, number) for number in range(24)}
    stored = client.connector.submit_batch_set(list(chunks), list(chunks.values()))
    loaded = bytearray(MIB)
    found = client.connector.submit_batch_get(["before"], [loaded])
    order: list[int] = []
    while len(order) < 2:
        client.wait_readable()
        order += [one[0] for one in client.connector.drain_completions() if one[1]]
    assert order == [found, stored], "a load waits for stores"
    assert loaded == pattern(MIB, 7)
    for key, chunk in chunks.items():
        assert client.load(key, MIB) == chunk
    assert client.connector.close()["shutdown_clean"]


def test_loads_overtake_stores_on_a_throttled_device(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, 96 * MIB, BLOCK_BYTES) as device:
        number = device.path.stat().st_rdev
        name = f"{os.major(number)}:{os.minor(number)}"
        rate = 4 * MIB
        limits = {
            1: {
                "blkio.throttle.write_bps_device": f"{name} {rate}",
                "blkio.throttle.read_bps_device": f"{name} {8 * rate}",
            },
            2: {"io.max": f"{name} wbps={rate} rbps={8 * rate}"},
        }
        with control_group("blkio", limits) as group:
            ended = run_in(group, load_beside_slow_stores, str(device.path))
            assert (ended.returncode, ended.stderr) == (0, "")
            served = group / "blkio.throttle.io_service_bytes"
            if served.exists():
                line = f"{name} Write "
                told = [one for one in served.read_text().splitlines() if one.startswith(line)]
                assert int(told[0].removeprefix(line)) >= 24 * MIB, "it was not throttled"
