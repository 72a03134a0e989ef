"""What was answered is found by the next process, however the last interpreter ended."""

import ctypes
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import CAPACITY_BYTES, MIB, Client, make_key, pattern, run_child
from tests.support.damage import damage

CHUNK_COUNT = 40


def chunks() -> dict[str, bytes]:
    """Return the same chunks in every process: from 1 byte to more than 1 MiB."""
    return {make_key(seed): pattern(1 + 20 * seed**3, seed) for seed in range(CHUNK_COUNT)}


def store_all(directory: str) -> Client:
    """Store all chunks, a batch of 10 at a time, and drain their completions."""
    client = Client(kvring.Connector(directory, CAPACITY_BYTES))
    todo = list(chunks().items())
    for start in range(0, CHUNK_COUNT, 10):
        client.store(dict(todo[start : start + 10]))
    client.delete([make_key(0)])
    client.store({make_key(0): todo[0][1]})
    client.delete([make_key(CHUNK_COUNT - 1)])
    return client


def store_and_keep_for_ever(directory: str) -> None:
    """Leave a reference that no interpreter shutdown finds, as extension modules do."""
    connector = store_all(directory).connector
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connector))


def store_and_exit_with_work_in_flight(directory: str) -> None:
    client = store_all(directory)
    content = pattern(MIB, 1)
    length_bytes = len(chunks()[make_key(20)])
    for number in range(50):
        client.connector.submit_batch_set([f"in flight {number}"], [content])
        client.connector.submit_batch_get([make_key(20)], [bytearray(length_bytes)])
    vars(sys.modules["__main__"])["client"] = client


def store_and_exit_under_a_poller(directory: str) -> None:
    """End while a daemon thread polls and drains, which is how LMCache's adapter runs."""
    client = store_all(directory)

    def demultiplex() -> None:
        poll = select.poll()
        poll.register(client.connector.event_fd(), select.POLLIN)
        while True:
            poll.poll()
            client.connector.drain_completions()

    length_bytes = len(chunks()[make_key(20)])
    threading.Thread(target=demultiplex, daemon=True).start()
    for _ in range(100):
        client.connector.submit_batch_get([make_key(20)], [bytearray(length_bytes)])


def load_all(directory: str) -> None:
    """Find, load and compare all chunks; print how many there are."""
    expected = chunks()
    gone = make_key(CHUNK_COUNT - 1)
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        client = Client(connector)
        found = client.exists(list(expected))
        assert found == [key != gone for key in expected]
        del expected[gone]
        for key, content in expected.items():
            assert client.load(key, len(content)) == content
        # The places of the old chunks are not given to new ones.
        client.store({f"new {seed}": pattern(MIB, seed) for seed in range(10)})
        for key, content in expected.items():
            assert client.load(key, len(content)) == content
        client.delete([f"new {seed}" for seed in range(10)])
    print("loaded", len(expected))


@pytest.mark.parametrize(
    "ending",
    [
        store_and_keep_for_ever,
        store_and_exit_with_work_in_flight,
        store_and_exit_under_a_poller,
    ],
    ids=lambda ending: ending.__name__,
)
def test_a_new_process_loads_what_was_answered(
    store_directory: Path, ending: Callable[..., None]
) -> None:
    ended = run_child(ending, str(store_directory))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    # Loading changes nothing: it can be done again.
    for _ in range(2):
        loaded = run_child(load_all, str(store_directory))
        assert (loaded.returncode, loaded.stderr) == (0, "")
        assert loaded.stdout == f"loaded {CHUNK_COUNT - 1}\n"


def exit_with_loads_in_flight(directory: str) -> None:
    client = Client(kvring.Connector(directory, CAPACITY_BYTES))
    keys = [f"damaged {number}" for number in range(4)]
    client.connector.submit_batch_get(keys, [bytearray(MIB) for _ in keys])
    vars(sys.modules["__main__"])["client"] = client


def test_a_process_ends_although_the_store_has_something_to_log(store_directory: Path) -> None:
    """Messages that come while the interpreter shuts down must not stop it."""
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        Client(connector).store({f"damaged {seed}": pattern(MIB, seed) for seed in range(4)})
    damage(store_directory)
    try:
        ended = run_child(exit_with_loads_in_flight, str(store_directory))
    except subprocess.TimeoutExpired:
        pytest.fail("the interpreter hangs at its end")
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
