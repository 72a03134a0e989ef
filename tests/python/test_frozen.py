"""Loads and close() on a frozen file system: they come back, though nothing that writes does."""

import fcntl
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

import kvring
from benches.compare.devices import DeviceError, loop_device
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, make_key, pattern

pytestmark = [pytest.mark.root, pytest.mark.slow]

CAPACITY_BYTES = 64 * MIB
IMAGE_SIZE_BYTES = 512 * MIB
HELD = 16
# close() waits for a minute in each of them, at the same time.
HANG_S = 150.0
# So often uses are written into the index, and a second.
KEEPER_S = 6.0
# linux/fs.h
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878

LIVES = [(layout, engine) for layout in ("extents", "files") for engine in ("io_uring", "posix")]


def live(path: str, layout: str, engine: str) -> None:
    """Fill a store; load from it, and close it, when the file system below has frozen."""
    options: dict[str, Any] = {"layout": layout, "engine": engine, "drain_timeout_s": 1}
    connector = kvring.Connector(path, CAPACITY_BYTES, min_free=0, **options)
    client = Client(connector)
    client.store({make_key(number): pattern(MIB, number) for number in range(HELD)})
    client.wait_until(lambda: connector.check()["moving_bytes"] == 0)
    print("ready", flush=True)
    sys.stdin.readline()
    keys = [make_key(number) for number in range(HELD)]
    found = client.exists(keys) == [True] * HELD
    for number, key in enumerate(keys):
        found = found and client.load(key, MIB) == pattern(MIB, number)
    print("loaded" if found else "missed", flush=True)
    sys.stdin.readline()
    print("closed in order" if connector.close()["shutdown_clean"] else "closed", flush=True)
    sys.stdin.readline()


@contextmanager
def frozen(directory: Path) -> Iterator[None]:
    """Freeze the file system of a directory: what would change it waits."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, FIFREEZE, 0)
        try:
            yield
        finally:
            fcntl.ioctl(descriptor, FITHAW, 0)
    finally:
        os.close(descriptor)


@pytest.mark.timeout(600)
def test_loads_and_close_come_back_from_a_frozen_file_system(
    tmp_path: Path, start_child: Callable[..., Popen[str]]
) -> None:
    with ExitStack() as stack:
        try:
            device = stack.enter_context(loop_device(tmp_path, "ext4", IMAGE_SIZE_BYTES))
        except DeviceError as error:
            pytest.skip(str(error))
        directory = device.directory
        children = {}
        for life in LIVES:
            children[life] = start_child(live, str(directory / "-".join(life)), *life)
            # Before the file system is unmounted.
            stack.callback(end, children[life])
        with frozen(directory):
            for child in children.values():
                tell(child)
            for life, child in children.items():
                assert hear(child, HANG_DEADLINE_S) == "loaded\n", life
            # Then the keeper wants to write down that they were used.
            time.sleep(KEEPER_S)
            for child in children.values():
                tell(child)
            for life, child in children.items():
                assert hear(child, HANG_S) == "closed\n", life
        for life, child in children.items():
            tell(child)
            assert child.wait(HANG_DEADLINE_S) == 0, life
        for life in LIVES:
            assert_held(directory / "-".join(life), life)


def end(child: Popen[str]) -> None:
    """End a child that is still there."""
    child.kill()
    child.wait(HANG_DEADLINE_S)


def hear(child: Popen[str], deadline_s: float) -> str:
    """Return the next line of a child.

    Not left to the time limit of tests, which would leave all of it frozen.
    """
    assert child.stdout is not None
    is_there = select.select([child.stdout], [], [], deadline_s)[0]
    return child.stdout.readline() if is_there else "it hangs"


def tell(child: Popen[str]) -> None:
    """Let a child go on."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def assert_held(path: Path, life: tuple[str, str]) -> None:
    """Find what was stored before the frost."""
    layout, engine = life
    options: dict[str, Any] = {"layout": layout, "engine": engine}
    with kvring.Connector(path, CAPACITY_BYTES, min_free=0, **options) as connector:
        client = Client(connector)
        for number in range(HELD):
            assert client.load(make_key(number), MIB) == pattern(MIB, number), (life, number)
        client.assert_sound()
