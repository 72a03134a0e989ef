"""close(): nothing is touched after it, and everything is given back (line 4 of the contract)."""

import gc
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    CAPACITY_BYTES,
    HANG_DEADLINE_S,
    MIB,
    Client,
    is_exported,
    make_key,
    pattern,
)
from tests.python.guarded_memory import Access, GuardedMemory

LATE_WRITE_S = 0.3
HELD_COUNT = 100
POISON = b"\xa5" * MIB


def submit_many(client: Client, memory: list[memoryview | bytearray]) -> int:
    """Put 500 loads and 500 stores of 1 MiB in flight; return how many operations that makes."""
    held = {make_key(number): pattern(MIB, number) for number in range(HELD_COUNT)}
    client.store(held)
    content = pattern(MIB, 1000)
    for number, one in enumerate(memory):
        client.connector.submit_batch_get([make_key(number % HELD_COUNT)], [one])
        client.connector.submit_batch_set([make_key(1000 + number)], [content])
    return 2 * len(memory)


@pytest.mark.parametrize(("drain_s", "shift_bytes"), [(0, 1), (0.2, 0), (5, 1)])
def test_no_buffer_is_written_after_close(
    open_client: Callable[..., Client], drain_s: float, shift_bytes: int
) -> None:
    client = open_client()
    memory = [GuardedMemory(MIB, shift_bytes) for _ in range(500)]
    assert submit_many(client, [one.view for one in memory]) == 1000
    assert client.stat("in_flight") > 0
    client.connector.close(HANG_DEADLINE_S, drain_s)
    assert client.stat("in_flight") == 0
    for one in memory:
        one.view[:] = POISON
        one.allow(Access.NONE)
    time.sleep(LATE_WRITE_S)
    for one in memory:
        one.allow(Access.READ)
        assert bytes(one.view) == POISON


def test_close_releases_all_memory(client: Client) -> None:
    memory = [bytearray(MIB) for _ in range(500)]
    submit_many(client, list(memory))
    assert is_exported(memory[-1])
    client.connector.close(HANG_DEADLINE_S, drain_s=0)
    assert not any(is_exported(one) for one in memory)


@pytest.mark.parametrize(
    ("timeout_s", "drain_s"), [(-1, None), (3601, None), (math.nan, None), (1, 2), (1, -1)]
)
def test_times_out_of_range_are_refused_and_close_nothing(
    client: Client, timeout_s: float, drain_s: float | None
) -> None:
    with pytest.raises(kvring.ConfigError, match="is not valid"):
        client.connector.close(timeout_s, drain_s)
    assert client.exists(["key"]) == [False]


def test_a_closed_connector_drains_nothing_and_refuses_everything(client: Client) -> None:
    client.connector.submit_batch_set(["key"], [pattern(4096, 1)])
    client.wait_readable()
    connector = client.connector
    connector.close()
    assert connector.drain_completions() == []
    submits: list[Callable[[], int]] = [
        lambda: connector.submit_batch_set(["key"], [b"content"]),
        lambda: connector.submit_batch_get(["key"], [bytearray(7)]),
        lambda: connector.submit_batch_exists(["key"]),
        lambda: connector.submit_batch_delete(["key"]),
        lambda: connector.submit_batch_exists([]),
    ]
    for submit in submits:
        with pytest.raises(kvring.ClosedError, match="closed"):
            submit()
    assert connector.drain_completions() == []
    assert repr(connector).endswith("closed")


def test_no_close_returns_before_the_memory_is_released(client: Client) -> None:
    """Also the second of two closers may touch or free the memory afterwards."""
    memory = [bytearray(MIB) for _ in range(200)]
    submit_many(client, list(memory))
    exported_after_close: list[bool] = []

    def close() -> None:
        client.connector.close()
        exported_after_close.append(any(is_exported(one) for one in memory))

    threads = [threading.Thread(target=close, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_DEADLINE_S)
    assert exported_after_close == [False] * 4


def test_the_context_manager_closes_and_passes_exceptions_on(store_directory: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        kvring.Connector(store_directory, CAPACITY_BYTES) as connector,
    ):
        _ = 1 / 0
    with pytest.raises(kvring.ClosedError):
        connector.submit_batch_exists(["key"])


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_connector_that_is_collected_gives_everything_back(
    store_directory: Path, in_a_cycle: bool
) -> None:
    memory = bytearray(pattern(MIB, 1))
    holder: list[object] = [kvring.Connector(store_directory, CAPACITY_BYTES)]
    if in_a_cycle:
        holder.append(holder)
    connector = holder[0]
    assert isinstance(connector, kvring.Connector)
    connector.submit_batch_set(["key"], [memory])
    del connector, holder
    gc.collect()
    assert not is_exported(memory)
    with kvring.Connector(store_directory, CAPACITY_BYTES) as again:
        assert Client(again).load("key", MIB) == bytes(memory)


def test_the_descriptor_stays_open_and_silent_until_the_connector_is_gone(
    store_directory: Path,
) -> None:
    """A poller may sleep on it during close(); its number must not come to mean something else."""
    connector = kvring.Connector(store_directory, CAPACITY_BYTES)
    client = Client(connector)
    descriptor = connector.event_fd()
    inode = os.fstat(descriptor).st_ino
    connector.submit_batch_set(["key"], [b"content"])
    client.wait_readable()
    connector.close()
    assert connector.event_fd() == descriptor
    assert os.fstat(descriptor).st_ino == inode
    assert not client.is_readable(), "a poller would spin: nothing can be drained any more"
    del client, connector
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
