"""What the adapters of LMCache below a shared tier do wrong, and what this process refuses."""

import threading
import time
from typing import Any, ClassVar

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from lmcache.v1.memory_management import TensorMemoryObj

from kvring.lmcache import KvringL2Adapter
from kvring.shared_tier.client_adapter import ClientAdapter
from kvring.shared_tier.clients import RedisClient
from tests.python.conftest import until
from tests.python.lmcache.shared_tiers import (
    ALL,
    BUFFER_BYTES,
    CHUNK_BYTES,
    NONE,
    NUMBERS,
    MakeNode,
)
from tests.support.servers import Redis

pytestmark = pytest.mark.lmcache


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


MAKE = "kvring.shared_tier.connection.create_adapter"


class Forgetful(ClientAdapter):
    """Never answers for its first load of chunks."""

    forgotten: ClassVar[list[TensorMemoryObj]] = []

    def submit_load_task(self, keys: Any, objects: list[TensorMemoryObj]) -> int:
        if self.forgotten or objects[0].get_size() != CHUNK_BYTES:
            return super().submit_load_task(keys, objects)
        self.forgotten.extend(objects)
        return -1


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> type[Forgetful]:
    monkeypatch.setattr(Forgetful, "forgotten", [])
    return Forgetful


def test_a_load_that_is_never_answered_has_its_connection_made_anew(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, forgetful: type[Forgetful]
) -> None:
    monkeypatch.setattr(MAKE, lambda config: forgetful(RedisClient(config), 2))
    monkeypatch.setattr("kvring.shared_tier.link._UNANSWERED_S", 1.0)
    first = make_node("first")
    first.share()
    second = make_node("second", shared_load_deadline_ms=200)
    assert second.lookup(NUMBERS) == ALL
    assert second.load(NUMBERS) == NONE
    until("its buffers are back", lambda: second.tier["buffered_bytes"] == 0)
    assert second.tier["lost"] == 1
    # Its deadline is short: on a busy machine it may be late once more.
    until("it finds them again", lambda: second.fetch(NUMBERS) == ALL)


class Other:
    """An adapter that is none of kvring's: nobody knows whether it has ended."""

    def __init__(self, adapter: ClientAdapter) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def test_memory_that_an_adapter_may_still_write_to_is_not_used_again(
    make_node: MakeNode,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    forgetful: type[Forgetful],
) -> None:
    """LMCache's `s3` goes on with what was under way when it is closed."""
    first = make_node("first")
    first.share()
    monkeypatch.setattr(MAKE, lambda config: Other(forgetful(RedisClient(config), 2)))
    second = make_node("second")
    assert second.lookup(NUMBERS) == ALL
    second.adapter._tier._inbox.post(lambda: threading.Timer(0.2, redis.kill).start())
    assert second.load(NUMBERS) == NONE
    until("it is lost", lambda: second.tier["lost"] == 1)
    # Else a store of its own may go to the connection that is dead.
    first.wait_answering(is_answering=False)
    redis.start()
    first.wait_answering()
    second.wait_answering()
    # They stay taken.
    assert second.tier["buffered_bytes"] == len(NUMBERS) * BUFFER_BYTES
    first.share(version=1)
    assert second.lookup(NUMBERS) == ALL
    for one in Forgetful.forgotten:
        one.raw_data.fill_(0xEE)
    assert second.load(NUMBERS, version=1) == ALL


class Short(ClientAdapter):
    """Says of chunks that it has loaded them, and has written their beginning alone."""

    def submit_load_task(self, keys: Any, objects: list[TensorMemoryObj]) -> int:
        if objects[0].get_size() != CHUNK_BYTES:
            return super().submit_load_task(keys, objects)
        for one in objects:
            one.raw_data[:1000] = 7
        self._note_answered(-1, [True] * len(keys))
        return -1


@pytest.mark.parametrize("checksums", ["required", "optional"])
def test_what_an_adapter_has_not_written_to_the_end_is_a_miss(
    make_node: MakeNode, redis: Redis, monkeypatch: pytest.MonkeyPatch, checksums: str
) -> None:
    """LMCache's `s3` says that it has loaded a chunk whose object is shorter."""
    first = make_node("first")
    first.share()
    if checksums == "optional":
        redis.ask("del", *redis.ask("keys", "test/model#crc64*"))
    monkeypatch.setattr(MAKE, lambda config: Short(RedisClient(config), 2))
    second = make_node("second", shared_checksums=checksums)
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
    first.share()
    assert second.lookup(NUMBERS) == ALL
    with monkeypatch.context() as patched:
        patched.setattr(ClientAdapter, "submit_load_task", refuse)
        assert second.load(NUMBERS) == NONE
    second.wait_answering()
    with monkeypatch.context() as patched:
        patched.setattr(ClientAdapter, "submit_store_task", refuse)
        assert second.store([50, 51])
        until("both are lost", lambda: second.tier["lost"] == 2)
    second.wait_answering()
    with monkeypatch.context() as patched:
        patched.setattr(KvringL2Adapter, "submit_store_task", refuse)
        assert second.fetch(NUMBERS) == ALL
    until("all is given back", lambda: second.tier["buffered_bytes"] == 0)


@pytest.mark.parametrize("call", ["lookup_and_lock", "load", "store"])
def test_an_adapter_that_blocks_costs_one_deadline_and_is_left_alone(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    may_go_on = threading.Event()
    first = make_node("first")
    first.share()
    second = make_node("second", shared_lookup_deadline_ms=200, shared_load_deadline_ms=200)
    until("they are found", lambda: second.lookup(NUMBERS) == ALL)
    connection = second.adapter._tier._link.connection
    assert connection is not None

    def block(*_: Any) -> None:
        may_go_on.wait()
        raise OSError("it was blocked")

    monkeypatch.setattr(connection._adapter, f"submit_{call}_task", block)
    try:
        if call == "store":
            # LMCache's memory is its own again.
            assert second.store([50, 51])
            assert second.lookup([98, 99]) == [False, False]
        elif call == "load":
            assert second.load(NUMBERS) == NONE
        else:
            assert second.lookup([98, 99]) == [False, False]
        assert second.tier["late"] >= 1
        # Its probe is not answered.
        until("it is lost", lambda: second.tier["lost"] >= 1)
        until("it finds them again", lambda: second.fetch(NUMBERS) == ALL)
    finally:
        may_go_on.set()
    until("all is given back", lambda: second.tier["buffered_bytes"] == 0)
