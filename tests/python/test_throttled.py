"""SETs beside a load that takes half a minute: the kernel throttles the reads of a device."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

import kvring
from tests.python.conftest import (
    HANG_DEADLINE_S,
    KIB,
    MIB,
    Client,
    bare_loop_device,
    filled_memory,
    make_key,
    make_memory,
    pattern,
)
from tests.support.tuning import tuned

pytestmark = [pytest.mark.root, pytest.mark.slow]

CONTROLLER = Path("/sys/fs/cgroup/blkio")
# One transfer, of half a minute.
LOADED_BYTES = 512 * KIB
READ_BYTES_PER_S = 16 * KIB
STORED = 64


@contextmanager
def control_group() -> Iterator[Path]:
    """Make a group of processes whose transfers can be throttled; skip where that cannot be."""
    group = CONTROLLER / f"kvring-test-{os.getpid()}"
    if not (CONTROLLER / "blkio.throttle.read_bps_device").exists():
        pytest.skip("no cgroup (v1) throttles block devices here")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        yield group
    finally:
        group.rmdir()


def throttle(group: Path, device: str, bytes_per_s: int) -> None:
    """Let the group read so much of a device; 0 is without a limit."""
    number = Path(device).stat().st_rdev
    rule = f"{os.major(number)}:{os.minor(number)} {bytes_per_s}"
    (group / "blkio.throttle.read_bps_device").write_text(rule, encoding="ascii")


def live(group: str, device: str, index: str, engine: str) -> None:
    """Store chunks while one is being loaded, and say which is done first."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    with tuned(set_max_wait_ms=200):
        connector = kvring.Connector(device, "all", index_path=index, engine=engine, io_threads=1)
    client = Client(connector)
    content = pattern(LOADED_BYTES, 1)
    client.store({"loaded": content})
    print("ready", flush=True)
    throttle(Path(group), device, READ_BYTES_PER_S)
    try:
        memory = make_memory(LOADED_BYTES)
        load = connector.submit_batch_get(["loaded"], [memory])
        chunks = [filled_memory(pattern(16 * KIB, seed)) for seed in range(STORED)]
        stores = [
            connector.submit_batch_set([make_key(seed)], [chunk])
            for seed, chunk in enumerate(chunks)
        ]
        assert all(completion.ok for completion in client.wait_all(stores))
        is_loading = client.stat("in_flight") == 1
    finally:
        throttle(Path(group), device, 0)
    assert client.wait(load).results == [True]
    assert bytes(memory) == content
    print("stored meanwhile" if is_loading else "stored afterwards", flush=True)
    connector.close()
    sys.stdin.readline()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["io_uring", "posix"])
def test_sets_wait_no_longer_for_a_load_that_takes_long(
    tmp_path: Path, engine: str, start_child: Callable[..., Popen[str]]
) -> None:
    with bare_loop_device(tmp_path, 128 * MIB) as device, control_group() as group:
        child = start_child(live, str(group), str(device.path), str(tmp_path), engine)
        output, errors = child.communicate("\n", timeout=4 * HANG_DEADLINE_S)
        assert output == "stored meanwhile\n", errors
