"""All that may befall a tier that nodes share, and what kvring in front of it does then."""

import gc
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from lmcache.v1.memory_management import TensorMemoryObj

from demo.servers import Network, Redis
from kvring.lmcache import KvringL2Adapter
from kvring.lmcache.shared_connection import Connection
from tests.python.conftest import HANG_DEADLINE_S, until
from tests.python.lmcache.shared_tiers import (
    ALL,
    BUFFER_BYTES,
    CHUNK_BYTES,
    NONE,
    NUMBERS,
    PATIENT,
    MakeNode,
    Node,
    keys_of,
    stored_in,
)

pytestmark = pytest.mark.lmcache


def test_a_shared_tier_that_was_killed_is_a_miss_and_comes_back(
    make_node: MakeNode, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node("one")
    assert node.store(NUMBERS[:6])
    stored_in(node, 6)
    redis.kill()
    # Its own stay.
    assert node.fetch(NUMBERS) == [True] * 6 + [False] * 6
    node.wait_answering(is_answering=False)
    assert node.store(NUMBERS)
    assert node.fetch(NUMBERS) == ALL
    redis.start()
    node.wait_answering()
    told = [line for line in caplog.messages if "the shared tier" in line]
    assert len(told) == 2, told
    assert str(redis.port) in told[0]
    assert "goes on alone until it does: nothing can be stored there" in told[0]
    assert "answers again" in told[1]
    assert node.tier["lost"] == 1
    assert node.store(NUMBERS, version=1)
    stored_in(node, 6 + len(NUMBERS))
    assert make_node("two").fetch(NUMBERS, version=1) == ALL


def test_a_node_starts_without_its_shared_tier(redis: Redis, tmp_path: Path) -> None:
    redis.kill()
    with Node(tmp_path / "one", redis.port, **PATIENT) as node:
        assert node.store(NUMBERS)
        assert node.fetch([*NUMBERS, 99]) == [*ALL, False]
        redis.start()
        node.wait_answering()
        assert node.store([99])
        stored_in(node, 1)


def test_a_shared_tier_that_hangs_costs_one_deadline_and_then_nothing(
    make_node: MakeNode, redis: Redis
) -> None:
    first = make_node("first")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    second = make_node("second", shared_lookup_deadline_ms=100)
    redis.stop()
    assert second.lookup(NUMBERS) == NONE
    assert second.tier["late"] == 1
    # Nobody waits for it any more: it is not asked.
    for _ in range(50):
        assert second.lookup(NUMBERS) == NONE
    assert second.tier["late"] == 1
    assert second.store(NUMBERS[:3])
    assert second.tier["skipped_stores"] == 3
    assert second.fetch(NUMBERS) == [True] * 3 + [False] * 9
    redis.resume()
    second.wait_answering()
    assert second.fetch(NUMBERS) == ALL


def test_a_connection_that_hangs_is_given_up_with_all_that_waits(
    make_node: MakeNode, redis: Redis
) -> None:
    node = make_node("one")
    redis.stop()
    assert node.lookup(NUMBERS) == NONE
    assert node.tier["lost"] == 1
    redis.resume()
    node.wait_answering()
    assert node.store(NUMBERS)
    stored_in(node, len(NUMBERS))


def test_what_comes_too_late_is_a_miss_and_is_there_the_next_time(
    make_node: MakeNode, network: Network
) -> None:
    first = make_node("first")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    second = make_node("second", network.port, shared_load_deadline_ms=50)
    assert second.lookup(NUMBERS) == ALL
    network.bytes_per_s = len(NUMBERS) * CHUNK_BYTES
    # Nothing is written into its memory later: `load` compares what it got, and this is a miss.
    assert second.load(NUMBERS) == NONE
    network.bytes_per_s = None
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    assert second.fetch(NUMBERS) == ALL
    assert second.tier["loaded_bytes"] == 0


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


def test_a_chunk_that_goes_after_its_lookup_costs_one_deadline(
    make_node: MakeNode, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMCache's `resp` (0.5.6) never answers for it; its other threads go on."""
    monkeypatch.setattr("kvring.lmcache.shared_link._UNANSWERED_S", 1.0)
    first = make_node("first")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    second = make_node("second", shared_load_deadline_ms=200)
    assert second.lookup(NUMBERS) == ALL
    redis.ask("del", redis.ask("keys", "test/model*")[0])
    assert second.load(NUMBERS).count(None) == 0
    until("its buffers are back", lambda: second.tier["buffered_bytes"] == 0)
    second.wait_answering()
    assert sum(bool(one) for one in second.fetch(NUMBERS)) == len(NUMBERS) - 1


def test_hits_of_its_own_wait_for_no_slow_tier(make_node: MakeNode, network: Network) -> None:
    node = make_node("one", network.port)
    node.store(NUMBERS)
    stored_in(node, len(NUMBERS))
    # From now on an answer takes longer than a hang.
    network.bytes_per_s = 0.1
    for _ in range(20):
        assert node.fetch(NUMBERS) == ALL
    assert node.store([77])
    assert node.fetch([77]) == [True]


def test_a_chunk_of_another_length_is_a_miss_and_nothing_is_kept(
    make_node: MakeNode, redis: Redis
) -> None:
    first, second = make_node("first"), make_node("second")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    for key in redis.ask("keys", "test/model*"):
        redis.ask("set", key, "x" * 100)
    fetched = second.fetch(NUMBERS)
    assert not any(fetched), fetched
    assert None not in fetched, "wrong bytes"
    assert second.tier["promoted"] == 0
    assert second.adapter.report_status()["keys"] == 0


def test_it_is_killed_and_started_again_under_load(make_node: MakeNode, redis: Redis) -> None:
    nodes = [make_node("one"), make_node("two")]
    failures: list[BaseException] = []
    done = threading.Event()

    def work(node: Node, first: int) -> None:
        """Ask for chunks of its own and of the other, and store more."""
        try:
            number = first
            while not done.is_set():
                assert node.store([number, number + 2])
                wanted = [number, number ^ 1, (number + 2) ^ 1, number + 1000]
                fetched = node.fetch(wanted)
                assert None not in fetched, "wrong bytes"
                assert fetched[0] is True, "a chunk of its own is missed"
                number += 4
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(node, number), daemon=True)
        for number, node in enumerate(nodes)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            before = [node.adapter._tier.counts["lost"] for node in nodes]
            redis.kill()
            for node, count in zip(nodes, before, strict=True):
                tier = node.adapter._tier
                until("it is lost", lambda tier=tier, count=count: tier.counts["lost"] > count)  # type: ignore[misc]
            redis.start()
            for node in nodes:
                tier = node.adapter._tier
                until("it answers", lambda tier=tier: tier.is_answering)  # type: ignore[misc]
    finally:
        done.set()
        for thread in threads:
            thread.join(HANG_DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    assert failures == []


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
    second.wait_answering()
    assert second.tier["lost"] == 1
    assert second.fetch(NUMBERS) == ALL


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


@pytest.mark.parametrize("state", ["idle", "busy", "asking", "lost"])
def test_a_node_is_closed_in_the_midst_of_all(redis: Redis, tmp_path: Path, state: str) -> None:
    def live() -> None:
        with Node(tmp_path / "one", redis.port, **PATIENT) as node:
            node.wait_answering()
            if state == "busy":
                node.store(NUMBERS)
            elif state == "asking":
                redis.stop()
                node.adapter.submit_lookup_and_lock_task(keys_of([88]), {})
            elif state == "lost":
                redis.kill()
                node.store(NUMBERS)
            if state == "asking":
                # Its connection cannot end before that.
                threading.Timer(0.2, redis.resume).start()
        node.adapter.close()
        if state == "lost":
            redis.start()

    live()
    before = descriptors()
    for _ in range(3):
        live()
    until("all is closed", lambda: descriptors() <= before)


def descriptors() -> int:
    # What is in a cycle with a thread that still ends goes later.
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
