"""What the adapters of LMCache below a shared tier do wrong, and what this process refuses."""

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from lmcache.v1.memory_management import TensorMemoryObj

from demo.servers import Redis
from kvring.lmcache import KvringL2Adapter
from kvring.lmcache.shared_connection import Connection
from tests.python.conftest import HANG_DEADLINE_S, until
from tests.python.lmcache.shared_tiers import (
    ALL,
    BUFFER_BYTES,
    NONE,
    NUMBERS,
    PATIENT,
    MakeNode,
    Node,
    keys_of,
    stored_in,
)

pytestmark = pytest.mark.lmcache


def test_a_process_without_room_for_threads_goes_on_alone(
    make_node: MakeNode, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("one")

    refused: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        redis.kill()
        assert node.store(NUMBERS)
        node.wait_answering(is_answering=False)
        assert node.fetch([*NUMBERS, 99]) == [*ALL, False]
        # One to end the connection, and one to connect anew.
        until("it tries to connect", lambda: len(refused) >= 2)
        redis.start()
    node.wait_answering()
    assert node.store([99])
    stored_in(node, 1)


def test_one_that_is_late_again_and_again_is_asked_less_and_less(make_node: MakeNode) -> None:
    link = make_node("one").adapter._tier._link
    pauses = []
    for _ in range(6):
        link.is_answering = True
        link.doubt(5.0)
        # Others that waited at the same time.
        link.doubt(5.0)
        pauses.append(link._pause_s)
        # An answer that was on its way changes nothing.
        link._note_answer(time.monotonic())
        assert not link.is_answering
    assert pauses == [5, 10, 20, 40, 60, 60]
    link.trust()
    link.is_answering = True
    link.doubt(5.0)
    assert link._pause_s == 5


CONNECTION = "kvring.lmcache.shared_link.Connection"


def test_a_connection_that_comes_after_the_end_is_closed(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_connect, closed = threading.Event(), threading.Event()

    class Late(Connection):
        def __init__(self, *arguments: Any) -> None:
            may_connect.wait()
            super().__init__(*arguments)

        def close(self) -> tuple[list[TensorMemoryObj], bool]:
            closed.set()
            return super().close()

    monkeypatch.setattr(CONNECTION, Late)
    with Node(tmp_path / "one", redis.port, **PATIENT) as node:
        tier = node.adapter._tier
    may_connect.set()
    assert closed.wait(HANG_DEADLINE_S)
    # One that had seen it answer, and asks after the end.
    tier._link.is_answering = True
    answers: list[list[bool]] = []
    tier.lookup(keys_of([1]), {}, answers.append)
    assert answers == [[False]]


class Forgetful(Connection):
    """Never answers for its first load."""

    forgotten: ClassVar[list[TensorMemoryObj]] = []

    def load(self, keys: Any, objects: list[TensorMemoryObj], answer: Any) -> None:
        if self.forgotten:
            super().load(keys, objects, answer)
            return
        self.forgotten.extend(objects)
        self._loads[-1] = (keys, objects, answer)
        self._began_s[-1, "load"] = time.monotonic()
        self._adapter.query_load_result = _but_one(self._adapter.query_load_result)


def _but_one(query: Any) -> Any:
    return lambda task: None if task == -1 else query(task)


def test_a_load_that_is_never_answered_has_its_connection_made_anew(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONNECTION, Forgetful)
    monkeypatch.setattr(Forgetful, "forgotten", [])
    monkeypatch.setattr("kvring.lmcache.shared_link._UNANSWERED_S", 1.0)
    first = make_node("first")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    second = make_node("second", shared_load_deadline_ms=200)
    assert second.lookup(NUMBERS) == ALL
    assert second.load(NUMBERS) == NONE
    until("its buffers are back", lambda: second.tier["buffered_bytes"] == 0)
    assert second.tier["lost"] == 1
    # Its deadline is short: on a busy machine it may be late once more.
    until("it finds them again", lambda: second.fetch(NUMBERS) == ALL)


def test_memory_that_an_adapter_may_still_write_to_is_not_used_again(
    make_node: MakeNode, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMCache's `fs` and `s3` go on with what was under way when they are closed."""

    class Careless(Forgetful):
        def close(self) -> tuple[list[TensorMemoryObj], bool]:
            return super().close()[0], False

    first = make_node("first")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    monkeypatch.setattr(CONNECTION, Careless)
    monkeypatch.setattr(Forgetful, "forgotten", [])
    second = make_node("second")
    assert second.lookup(NUMBERS) == ALL
    second.adapter._tier._do(lambda: threading.Timer(0.2, redis.kill).start())
    assert second.load(NUMBERS) == NONE
    until("it is lost", lambda: second.tier["lost"] == 1)
    # Else a store of its own may go to the connection that is dead.
    first.wait_answering(is_answering=False)
    redis.start()
    first.wait_answering()
    second.wait_answering()
    # They stay taken.
    assert second.tier["buffered_bytes"] == len(NUMBERS) * BUFFER_BYTES
    assert first.store(NUMBERS, version=1)
    stored_in(first, 2 * len(NUMBERS))
    assert second.lookup(NUMBERS) == ALL
    for one in Forgetful.forgotten:
        one.raw_data.fill_(0xEE)
    assert second.load(NUMBERS, version=1) == ALL


def test_what_an_adapter_has_not_written_to_the_end_is_a_miss(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMCache's `s3` says that it has loaded a chunk whose object is shorter."""
    first = make_node("first")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))

    class Short(Connection):
        def load(self, keys: Any, objects: list[TensorMemoryObj], answer: Any) -> None:
            for one in objects:
                one.raw_data[:1000] = 7
            answer([True] * len(keys))

    monkeypatch.setattr(CONNECTION, Short)
    second = make_node("second")
    assert second.lookup(NUMBERS) == ALL
    assert second.load(NUMBERS) == NONE
    assert second.tier["promoted"] == 0
    assert second.tier["buffered_bytes"] == 0


def test_what_an_adapter_refuses_has_its_buffers_back(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no")

    first, second = make_node("first"), make_node("second")
    assert first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    assert second.lookup(NUMBERS) == ALL
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "load", refuse)
        assert second.load(NUMBERS) == NONE
        patched.setattr(Connection, "store", refuse)
        second.wait_answering()
        assert second.store([50, 51])
        until("both are lost", lambda: second.tier["lost"] == 2)
    with monkeypatch.context() as patched:
        second.wait_answering()
        patched.setattr(KvringL2Adapter, "submit_store_task", refuse)
        assert second.fetch(NUMBERS) == ALL
    until("all is given back", lambda: second.tier["buffered_bytes"] == 0)


def test_a_tier_that_cannot_begin_leaves_the_store_closed(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("os.eventfd", refuse)
        with pytest.raises(OSError, match="too many open files"):
            Node(tmp_path / "one", redis.port)
    with Node(tmp_path / "one", redis.port) as node:
        assert node.store(NUMBERS)
