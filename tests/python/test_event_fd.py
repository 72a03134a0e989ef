"""The event descriptor and what drain_completions() returns."""

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import CAPACITY_BYTES, Client, make_memory, pattern, run_child

BATCH_COUNT = 5000


def test_the_descriptor_is_an_open_int(client: Client) -> None:
    descriptor = client.connector.event_fd()
    assert type(descriptor) is int
    assert descriptor == client.connector.event_fd()
    assert "eventfd" in str(Path(f"/proc/self/fd/{descriptor}").readlink())


def test_the_descriptor_is_non_blocking_and_closed_on_exec(client: Client) -> None:
    descriptor = client.connector.event_fd()
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(BlockingIOError):
        os.read(descriptor, 8)


def test_no_descriptor_of_the_store_reaches_another_program(client: Client) -> None:
    client.store({"key": pattern(4096, 1)})
    code = "import os; print([os.path.realpath('/dev/fd/' + fd) for fd in os.listdir('/dev/fd')])"
    inherited = subprocess.run(
        [sys.executable, "-c", code], close_fds=False, capture_output=True, text=True, check=True
    ).stdout
    assert "pipe:" in inherited
    assert "kvring" not in inherited
    assert "io_uring" not in inherited
    assert "eventfd" not in inherited


def test_the_descriptor_is_readable_only_while_completions_wait(client: Client) -> None:
    assert not client.is_readable()
    for _ in range(3):
        future_id = client.connector.submit_batch_set(["key"], [pattern(4096, 1)])
        client.wait_readable()
        # Level-triggered: looking does not change it.
        assert all(client.is_readable() for _ in range(3))
        assert client.collect() == [future_id]
        assert not client.is_readable()
        assert client.collect() == []


def test_a_completion_has_the_types_that_lmcache_expects(client: Client) -> None:
    client.store({"key": pattern(4096, 1)})
    connector = client.connector
    waiting = {
        connector.submit_batch_set(["new"], [pattern(4096, 2)]): [True],
        connector.submit_batch_get(["key", "none"], [make_memory(4096)] * 2): [True, False],
        connector.submit_batch_exists(["key", "none"]): [True, False],
        connector.submit_batch_prefix(["key", "none", "key"]): [True, False, False],
        connector.submit_batch_delete(["none", "none either"]): [True, True],
    }
    assert all(type(future_id) is int for future_id in waiting)
    while waiting:
        client.wait_readable()
        drained = connector.drain_completions()
        assert type(drained) is list
        for completion in drained:
            assert type(completion) is tuple
            assert [type(part) for part in completion] == [int, bool, str, list]
            future_id, ok, error, results = completion
            assert (ok, error) == (True, "")
            assert all(type(result) is bool for result in results)
            assert results == waiting.pop(future_id)


def submit_without_draining(directory: str) -> None:
    connector = kvring.Connector(directory, CAPACITY_BYTES)
    client = Client(connector)
    client.store({"held": pattern(4096, 1)})
    memory = [make_memory(4096) for _ in range(BATCH_COUNT // 5)]
    submitted = []
    for number in range(BATCH_COUNT // 5):
        key = f"key {number % 100}"
        submitted += [
            connector.submit_batch_set([key], [pattern(4096, number)]),
            connector.submit_batch_get(["held"], [memory[number]]),
            connector.submit_batch_exists([key]),
            connector.submit_batch_delete([key]),
            connector.submit_batch_get([], []),
        ]
    assert len(submitted) == BATCH_COUNT
    assert all(completion.ok for completion in client.wait_all(submitted))
    assert client.collect() == []
    assert not client.is_readable()
    assert all(bytes(one) == pattern(4096, 1) for one in memory)
    print("all submitted, then all drained")


def test_submits_do_not_wait_for_completions_to_be_drained(store_directory: Path) -> None:
    """Line 6: thousands of batches, and none is drained before the last is submitted.

    In a process of its own: a submit that blocks can only be ended with it.
    """
    ended = run_child(submit_without_draining, str(store_directory))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "all submitted, then all drained\n"


def test_who_closes_the_descriptor_breaks_no_other_store(tmp_path: Path) -> None:
    """Its number becomes that of another file: here, of one of the next store's."""
    content = pattern(4096, 1)
    first = kvring.Connector(tmp_path / "first", "32MiB")
    closed = first.event_fd()
    os.close(closed)
    second = Client(kvring.Connector(tmp_path / "second", "32MiB"))
    second.store({str(number): content for number in range(100)})
    link = Path(f"/proc/self/fd/{closed}")
    before = str(link.readlink())
    for _ in range(100):
        first.submit_batch_exists(["key"])
        first.drain_completions()
    first.close()
    del first
    gc.collect()
    assert str(link.readlink()) == before, "it was closed a second time"
    assert [second.load(str(number), 4096) for number in range(100)] == [content] * 100
    second.connector.close()
    assert second.connector.stats()["shutdown_clean"]
    again = Client(kvring.Connector(tmp_path / "second", "32MiB"))
    assert again.connector.recovery["kept"] == 100
    again.connector.close()
