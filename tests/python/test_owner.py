"""One store has one owner at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    CAPACITY_BYTES,
    MIB,
    Client,
    is_readable,
    make_memory,
    pattern,
    until,
)

Start = Callable[..., "subprocess.Popen[str]"]


def hold(directory: str) -> None:
    """Store a chunk, say so, and keep the store open until the end of the input."""
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        Client(connector).store({"key": pattern(MIB, 1)})
        print("ready", flush=True)
        sys.stdin.read()


def hold_with_transfers_in_flight(directory: str) -> None:
    """Keep the device busy for longer than it takes to be killed."""
    connector = kvring.Connector(directory, "4GiB")
    Client(connector).store({"key": pattern(MIB, 1)})
    memory = make_memory(MIB)
    for batch in range(60):
        keys = [f"{batch}/{number}" for number in range(50)]
        connector.submit_batch_set(keys, [memory] * len(keys))
    print("ready", flush=True)
    sys.stdin.read()


def hold_beside_another_program(directory: str) -> None:
    """Start a program that lives on and inherits every descriptor that it can."""
    connector = kvring.Connector(directory, CAPACITY_BYTES)
    Client(connector).store({"key": pattern(MIB, 1)})
    subprocess.Popen(
        [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"],
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )
    signal.pause()


def hold_beside_a_fork(directory: str) -> None:
    """Keep the store open, and have a fork that lives on."""
    connector = kvring.Connector(directory, CAPACITY_BYTES)
    Client(connector).store({"key": pattern(MIB, 1)})
    if os.fork() == 0:
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
    signal.pause()


def assert_holds_its_chunk(directory: Path, capacity: int | str = CAPACITY_BYTES) -> None:
    with kvring.Connector(directory, capacity) as connector:
        assert Client(connector).load("key", MIB) == pattern(MIB, 1)


def test_a_second_connector_in_the_same_process_is_refused(
    client: Client, store_directory: Path
) -> None:
    for _ in range(3):
        with pytest.raises(kvring.InUseError) as refusal:
            kvring.Connector(store_directory, CAPACITY_BYTES)
        assert f"process {os.getpid()} " in str(refusal.value)
        assert str(store_directory) in str(refusal.value)
    client.store({"key": pattern(MIB, 1)})
    client.connector.close()
    assert_holds_its_chunk(store_directory)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_store_of_a_killed_process_opens(
    store_directory: Path, start_child: Start, number: signal.Signals
) -> None:
    child = start_child(hold, str(store_directory))
    with pytest.raises(kvring.InUseError, match=f"process {child.pid} "):
        kvring.Connector(store_directory, CAPACITY_BYTES)
    child.send_signal(number)
    assert child.wait() == -number
    assert_holds_its_chunk(store_directory)


def test_the_store_of_a_killed_process_opens_before_its_parent_has_reaped_it(
    store_directory: Path, start_child: Start
) -> None:
    """A zombie holds nothing; what the kernel still has to finish for it takes moments."""
    child = start_child(hold_with_transfers_in_flight, str(store_directory))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert_holds_its_chunk(store_directory, "4GiB")


def test_the_programs_that_a_killed_process_started_do_not_hold_its_store(
    store_directory: Path, start_child: Start
) -> None:
    child = start_child(hold_beside_another_program, str(store_directory))
    child.kill()
    child.wait()
    assert child.stdout is not None
    assert not is_readable(child.stdout, 0), "the other program has ended too"
    assert_holds_its_chunk(store_directory)


def test_the_forks_of_a_killed_process_do_not_hold_its_store(
    store_directory: Path, start_child: Start
) -> None:
    """A fork shares its owner's files, and with them the lock, unless it gives them up."""
    child = start_child(hold_beside_a_fork, str(store_directory))
    child.kill()
    child.wait()
    assert child.stdout is not None
    assert not is_readable(child.stdout, 0), "the fork has ended too"
    assert_holds_its_chunk(store_directory)


def entries(directory: str) -> list[Path]:
    return sorted(Path(directory).iterdir())


def test_opening_and_closing_leaves_no_descriptor_and_no_thread(store_directory: Path) -> None:
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        Client(connector).store({"key": pattern(MIB, 1)})
    del connector
    descriptors = len(entries("/proc/self/fd"))
    threads = len(entries("/proc/self/task"))
    for _ in range(10):
        assert_holds_its_chunk(store_directory)
    assert len(entries("/proc/self/fd")) == descriptors
    # A joined thread is listed for a moment longer.
    until("their end", lambda: len(entries("/proc/self/task")) <= threads)
