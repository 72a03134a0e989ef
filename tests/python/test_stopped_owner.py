"""An owner that is stopped (SIGSTOP): commands say so, readers read on, and nothing is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvring
from kvring.cli import main
from kvring.owner_socket import ask
from tests.python.conftest import (
    CAPACITY_BYTES,
    ENGINE,
    HANG_DEADLINE_S,
    MIB,
    Client,
    make_key,
    pattern,
)

Start = Callable[..., "subprocess.Popen[str]"]


def hold(directory: str) -> None:
    """Store a chunk, and keep the store open until the end of the input."""
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        Client(connector).store({make_key(1, "tenant"): pattern(MIB, 1)})
        print("ready", flush=True)
        sys.stdin.read()


def hold_beside_a_stopped_fork(directory: str) -> None:
    """Do the same with a fork that is stopped and says its number."""
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        Client(connector).store({make_key(1, "tenant"): pattern(MIB, 1)})
        fork = os.fork()
        if fork == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(fork, os.WUNTRACED)
        try:
            print("ready", flush=True)
            sys.stdin.read()
            connector.close()
        finally:
            print("closed", flush=True)
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)


def work(directory: str) -> None:
    """Store and load until the end of the input, then tell how many chunks were wrong."""
    ends = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ends.set()

    threading.Thread(target=await_end, daemon=True).start()
    with kvring.Connector(directory, "64MiB", engine=ENGINE, lease_s=0) as connector:
        client = Client(connector)
        contents = {make_key(number): pattern(200_000, number) for number in range(16)}
        wrong = rounds = 0
        while not ends.is_set():
            stored = client.set(list(contents), list(contents.values()))
            loaded = [client.load(key, 200_000) for key in contents]
            wrong += not stored.ok
            wrong += loaded != list(contents.values())
            client.delete(list(contents)[::2])
            rounds += 1
            print("ready", flush=True)
        client.assert_sound()
    print("rounds", rounds > 2, "wrong", wrong, flush=True)


def stop_while_closing(directory: str, delay_ms: float) -> None:
    """Close a store in the middle of its writes, and be stopped in the middle of that."""
    connector = kvring.Connector(directory, "1GiB", engine=ENGINE, durability="persistent")
    keys = [make_key(number) for number in range(64)]
    connector.submit_batch_set(keys, [bytearray(4 * MIB)] * len(keys))
    time.sleep(0.1)

    def stop() -> None:
        time.sleep(delay_ms / 1000)
        os.kill(os.getpid(), signal.SIGSTOP)

    stopping = threading.Thread(target=stop)
    print("ready", flush=True)
    stopping.start()
    closed = connector.close(HANG_DEADLINE_S, drain_s=0)
    stopping.join()
    print("clean", closed["shutdown_clean"], "held", closed["memory_held"], flush=True)


@contextmanager
def stopped(process_id: int) -> Iterator[None]:
    """Stop a child of this process for a while."""
    os.kill(process_id, signal.SIGSTOP)
    os.waitpid(process_id, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


def assert_done_right(worker: "subprocess.Popen[str]") -> None:
    """Have `work` end: every batch was answered, and no chunk was wrong."""
    out, error = worker.communicate("")
    assert (worker.returncode, error) == (0, "")
    assert out.splitlines()[-1] == "rounds True wrong 0"


def test_a_stopped_owner_is_named_and_the_store_read(
    store_directory: Path, start_child: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(store_directory)
    owner = start_child(hold, path)
    with stopped(owner.pid):
        for arguments in (
            ["stats", path],
            ["top", path, "--count=1", "--interval=0.1"],
            ["purge", path, "--namespace=test/model@tenant", "--yes"],
        ):
            assert main(arguments) == 1
            said = capsys.readouterr().err
            assert f"process {owner.pid}, which has {path} open, is stopped (SIGSTOP" in said
            assert f"kill -CONT {owner.pid}" in said
        with pytest.raises(kvring.InUseError, match=f"process {owner.pid} .*which is stopped"):
            kvring.Connector(path, CAPACITY_BYTES)
        # What only reads needs no owner.
        archive = str(tmp_path / "archive.tar")
        for arguments in (
            ["info", path],
            ["ls", path],
            ["usage", path],
            ["verify", path],
            ["export", path, "--output", archive],
        ):
            assert main(arguments) == 0, arguments
    assert ask(store_directory, None, {"ask": "stats"})["process_id"] == owner.pid
    owner.communicate("")
    assert owner.returncode == 0
    with kvring.Connector(path, CAPACITY_BYTES) as connector:
        # The purge that was refused is not done later.
        assert Client(connector).load(make_key(1, "tenant"), MIB) == pattern(MIB, 1)


@pytest.mark.slow
def test_a_stop_is_no_wait_for_a_device(tmp_path: Path, start_child: Start) -> None:
    """A stop of more than a minute is longer than anything that a close waits for."""
    closing = [
        start_child(stop_while_closing, str(tmp_path / f"{delay_ms}"), delay_ms)
        for delay_ms in (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    for child in closing:
        os.waitpid(child.pid, os.WUNTRACED)
    worker = start_child(work, str(tmp_path / "worker"))
    assert worker.stdout is not None
    worker.stdout.readline()
    with stopped(worker.pid):
        # Its own clients wait for a minute.
        time.sleep(50)
    # It works on: the first of these rounds may have ended before the stop.
    for _ in range(2):
        worker.stdout.readline()
    assert_done_right(worker)
    time.sleep(15)
    for child in closing:
        os.kill(child.pid, signal.SIGCONT)
    for child in closing:
        out, error = child.communicate()
        assert (child.returncode, error, out) == (0, "", "clean True held False\n")


def test_a_stopped_fork_holds_nothing_up(store_directory: Path, start_child: Start) -> None:
    owner = start_child(hold_beside_a_stopped_fork, str(store_directory))
    assert ask(store_directory, None, {"ask": "stats"})["process_id"] == owner.pid
    out, _ = owner.communicate("")
    assert (owner.returncode, out) == (0, "closed\n")
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        assert Client(connector).load(make_key(1, "tenant"), MIB) == pattern(MIB, 1)
