"""A connector belongs to the process that opened it: its forks refuse, and do no harm."""

import os
import signal
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, is_readable, make_memory, pattern

# Python 3.12 warns of any fork of a process with threads, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def run_fork(function: Callable[[], str]) -> str:
    """Call a function in a fork of this process, and return what it returns, or its traceback."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = function()
        except BaseException:  # noqa: BLE001 - it is told to the parent
            answer = traceback.format_exc()
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    answered = is_readable(reader, HANG_DEADLINE_S)
    if not answered:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as file:
        answer = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert answered, "the fork hangs"
    assert status == 0
    return answer


def refusal_of(submit: Callable[[], int]) -> str:
    try:
        return f"it was taken as {submit()}"
    except kvring.SubmitError as error:
        return f"{type(error).__name__}: {error}"


def test_submitting_in_a_fork_is_refused(client: Client) -> None:
    client.store({"key": pattern(4096, 1)})
    connector = client.connector
    submits: list[Callable[[], int]] = [
        lambda: connector.submit_batch_set(["key"], [bytearray(4096)]),
        lambda: connector.submit_batch_get(["key"], [bytearray(4096)]),
        lambda: connector.submit_batch_exists(["key"]),
        lambda: connector.submit_batch_delete(["key"]),
        lambda: connector.submit_batch_exists([]),
    ]
    for submit in submits:
        answer = run_fork(lambda submit=submit: f"{os.getpid()} {refusal_of(submit)}")  # type: ignore[misc]
        child, _, message = answer.partition(" ")
        assert message.startswith("SubmitError: ")
        assert f"belongs to process {os.getpid()}, not to its fork {child}" in message
        assert "open a connector of its own" in message
    assert client.load("key", 4096) == pattern(4096, 1)


def test_close_in_a_fork_returns_and_harms_nothing(
    client: Client, open_client: Callable[..., Client], store_directory: Path
) -> None:
    client.store({"key": pattern(MIB, 1)})
    memory = [make_memory(MIB) for _ in range(50)]
    future_ids = [client.connector.submit_batch_get(["key"], [one]) for one in memory]

    def close() -> str:
        client.connector.close()
        client.connector.close()
        return "closed"

    assert run_fork(close) == "closed"
    assert all(completion.results == [True] for completion in client.wait_all(future_ids))
    assert all(one == pattern(MIB, 1) for one in memory)
    client.store({"after": pattern(4096, 2)})
    with pytest.raises(kvring.InUseError):
        kvring.Connector(store_directory, "256MiB")
    client.connector.close()
    client = open_client()
    assert client.load("after", 4096) == pattern(4096, 2)


def test_draining_in_a_fork_takes_nothing_from_the_owner(client: Client) -> None:
    """The descriptor is shared with the fork: reading it there would silence it here."""
    future_id = client.connector.submit_batch_exists(["key"])
    assert client.is_readable()

    def drain() -> str:
        client.connector.drain_completions()
        return "drained"

    assert run_fork(drain) == "drained"
    assert client.is_readable(), "the owner is never told of its completion"
    assert client.wait(future_id).results == [False]


# What hung in nine of ten forks, or ended them, does so in one of these.
OWN_STORE_FORKS = 5


@pytest.mark.parametrize(("engine", "paths"), [("io_uring", 1), ("posix", 3)])
def test_forks_of_an_owner_with_many_threads_open_stores_of_their_own(
    tmp_path: Path, engine: str, paths: int
) -> None:
    """No thread of the owner is in the fork: nothing there may wait for one, or use its memory."""
    options: dict[str, Any] = {"engine": engine, "io_threads": 2}
    content = pattern(MIB, 1)

    def directories(name: str) -> list[Path]:
        return [tmp_path / name / str(number) for number in range(paths)]

    def use_its_own(name: str) -> str:
        with kvring.Connector(directories(name), "32MiB", **options) as connector:
            own = Client(connector)
            own.store({str(number): content for number in range(8)})
            return str(all(own.load(str(number), MIB) == content for number in range(8)))

    with kvring.Connector(directories("owner"), "64MiB", **options) as connector:
        owner = Client(connector)
        owner.store({"key": content})
        for number in range(OWN_STORE_FORKS):
            assert run_fork(partial(use_its_own, f"fork {number}")) == "True"
        assert owner.load("key", MIB) == content
