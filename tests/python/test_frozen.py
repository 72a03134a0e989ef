"""A frozen file system: loads, submits and close() come back, though nothing that writes does."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

import kvring
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, is_readable, make_key, pattern
from tests.support.devices import loop_device

pytestmark = [pytest.mark.root, pytest.mark.slow]

CAPACITY_BYTES = 64 * MIB
IMAGE_SIZE_BYTES = 512 * MIB
HELD = 16
# linux/fs.h
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878

# What is changed while it is frozen: longer than it takes to fill the store.
TTL_S = 5.0

LIVES = [("extents", "io_uring"), ("files", "posix")]


def change(path: str, layout: str, engine: str, closes: str) -> None:
    """Change what is stored when the file system has frozen; load the rest, and close."""
    options: dict[str, Any] = {"layout": layout, "engine": engine}
    connector = kvring.Connector(path, CAPACITY_BYTES, min_free=0, ttl=f"{TTL_S}s", **options)
    client = Client(connector)
    kept, deleted, expiring, more = (
        [make_key(number, salt) for number in range(HELD)]
        for salt in ("kept", "gone", "old", "more")
    )
    client.store({key: pattern(MIB, number) for number, key in enumerate(kept)})
    assert connector.pin(kept) == [True] * HELD
    client.store({key: pattern(MIB, 100) for key in deleted})
    client.store({key: pattern(MIB, 200) for key in expiring})
    assert connector.pin(deleted) == [True] * len(deleted)
    print("ready", flush=True)
    sys.stdin.readline()
    # More than there is room for.
    stored = [connector.submit_batch_set([key], [pattern(MIB, 300)]) for key in more]
    removed = [connector.submit_batch_delete([key]) for key in deleted]
    time.sleep(TTL_S + 1)
    connector.expire()
    gone = client.exists(deleted + expiring) == [False] * (len(deleted) + len(expiring))
    found = client.exists(kept) == [True] * HELD
    for number, key in enumerate(kept):
        found = found and client.load(key, MIB) == pattern(MIB, number)
    client.collect()
    is_answered = any(client.has(future_id) for future_id in removed)
    print(f"gone {gone}, found {found}, answered {is_answered}", flush=True)
    sys.stdin.readline()
    if closes == "thawed":
        results = [client.wait(future_id).results for future_id in removed]
        client.wait_all(stored)
        print("deleted" if results == [[True]] * len(removed) else results, flush=True)
    closed = connector.close(timeout_s=1 if closes == "frozen" else HANG_DEADLINE_S)
    print("closed in order" if closed["shutdown_clean"] else "closed", flush=True)
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
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_what_changes_on_a_frozen_file_system_holds_up_nothing_and_is_answered_when_it_has_thawed(
    tmp_path: Path, start_child: Callable[..., Popen[str]], file_system: str
) -> None:
    with ExitStack() as stack:
        device = stack.enter_context(loop_device(tmp_path, file_system, 2 * IMAGE_SIZE_BYTES))
        directory = device.directory
        children = {}
        for life in LIVES:
            for closes in ("frozen", "thawed"):
                path = str(directory / "-".join((*life, closes)))
                children[life, closes] = start_child(change, path, *life, closes)
                # Before the file system is unmounted.
                stack.callback(end, children[life, closes])
        with frozen(directory):
            for child in children.values():
                tell(child)
            for which, child in children.items():
                line = hear(child, HANG_DEADLINE_S + TTL_S)
                assert line == "gone True, found True, answered False\n", which
            early = {one: child for one, child in children.items() if one[1] == "frozen"}
            for child in early.values():
                tell(child)
            for which, child in early.items():
                assert hear(child, HANG_DEADLINE_S) == "closed\n", which
        for which, child in children.items():
            tell(child)
            if which[1] == "thawed":
                assert hear(child, HANG_DEADLINE_S) == "deleted\n", which
                assert hear(child, HANG_DEADLINE_S) == "closed in order\n", which
                tell(child)
            assert child.wait(HANG_DEADLINE_S) == 0, which
        for life, closes in children:
            assert_kept(directory / "-".join((*life, closes)), life, closes)


def end(child: Popen[str]) -> None:
    """End a child that is still there."""
    child.kill()
    child.wait(HANG_DEADLINE_S)


def hear(child: Popen[str], deadline_s: float) -> str:
    """Return the next line of a child.

    Not left to the time limit of tests, which would leave all of it frozen.
    """
    assert child.stdout is not None
    return child.stdout.readline() if is_readable(child.stdout, deadline_s) else "it hangs"


def tell(child: Popen[str]) -> None:
    """Let a child go on."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def assert_kept(path: Path, life: tuple[str, str], closes: str) -> None:
    """Find what nobody deleted, and nothing that was answered as deleted."""
    layout, engine = life
    options: dict[str, Any] = {"layout": layout, "engine": engine}
    with kvring.Connector(path, CAPACITY_BYTES, min_free=0, **options) as connector:
        client = Client(connector)
        for number in range(HELD):
            held = client.load(make_key(number, "kept"), MIB)
            assert held == pattern(MIB, number), (life, closes, number)
        if closes == "thawed":
            gone = [make_key(number, "gone") for number in range(HELD)]
            assert client.exists(gone) == [False] * HELD, life
        client.assert_sound()
