"""kvring in front of a tier that nodes share: promotion, and all that may befall the tier."""

import gc
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from prometheus_client import REGISTRY

import kvring
from kvring.lmcache import KvringSharedL2AdapterConfig
from tests.python.conftest import HANG_DEADLINE_S, until
from tests.python.lmcache.shared_tiers import CHUNK_BYTES, Network, Node, Redis, keys_of

pytestmark = pytest.mark.lmcache

NUMBERS = list(range(12))
ALL = [True] * len(NUMBERS)
NONE = [False] * len(NUMBERS)
# Longer than anything takes: whoever would wait for it hangs.
PATIENT = {
    "shared_lookup_deadline_ms": 4000 * HANG_DEADLINE_S,
    "shared_load_deadline_ms": 4000 * HANG_DEADLINE_S,
}
MOCK = {"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 1}
MakeNode = Callable[..., Node]


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis server."""
    server = Redis()
    yield server
    server.resume()
    server.kill()


@pytest.fixture
def network(redis: Redis) -> Iterator[Network]:
    """A way to it."""
    network = Network(redis.port)
    yield network
    network.close()


@pytest.fixture
def make_node(redis: Redis, tmp_path: Path) -> Iterator[MakeNode]:
    """Open nodes by name that reach it, and wait until they do; they are closed at the end."""
    with ExitStack() as stack:

        def make(name: str, port: int = redis.port, **options: Any) -> Node:
            node = stack.enter_context(Node(tmp_path / name, port, **{**PATIENT, **options}))
            node.wait_answering()
            return node

        yield make


def stored_in(redis_node: Node, count: int) -> None:
    """Wait until a node has stored so many chunks in the shared tier."""
    until("the shared tier has them", lambda: redis_node.tier["stores"] >= count)


def test_what_one_node_stored_is_there_for_another_and_then_its_own(make_node: MakeNode) -> None:
    first, second = make_node("first"), make_node("second")
    assert first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    assert second.adapter.report_status()["keys"] == 0
    assert second.fetch(NUMBERS) == ALL
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    assert second.adapter.report_status()["keys"] == len(NUMBERS)
    before = second.tier
    assert second.fetch(NUMBERS) == ALL
    assert second.tier == before, "it asked the shared tier again"
    assert before["loaded_bytes"] == len(NUMBERS) * CHUNK_BYTES
    assert before["buffered_bytes"] == 0


def test_a_chain_that_begins_here_goes_on_there(make_node: MakeNode) -> None:
    first, second = make_node("first"), make_node("second")
    assert first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    assert second.store(NUMBERS[:5])
    assert second.fetch([*NUMBERS, 99]) == [*ALL, False]
    assert second.tier["found"] == len(NUMBERS) - 5


def test_an_identity_finds_its_own_and_no_other(make_node: MakeNode) -> None:
    first = make_node("first", identity="fp8")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    assert make_node("like it", identity="fp8").fetch(NUMBERS) == ALL
    assert make_node("another", identity="bf16").fetch(NUMBERS) == NONE
    assert make_node("without", identity="none").fetch(NUMBERS) == NONE


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


def test_prometheus_is_told(make_node: MakeNode, redis: Redis, tmp_path: Path) -> None:
    node = make_node("one")
    node.store(NUMBERS)
    stored_in(node, len(NUMBERS))
    assert node.fetch([*NUMBERS, 99]) == [*ALL, False]
    labels = {"store": str(tmp_path / "one")}

    def value(name: str) -> float | None:
        found: float | None = REGISTRY.get_sample_value(f"kvring_shared_{name}", labels)
        return found

    assert value("lookups_total") == 1
    assert value("found_total") == 0
    assert value("stores_total") == len(NUMBERS)
    assert value("answering") == 1
    redis.kill()
    node.fetch([100])
    until("it is told", lambda: value("answering") == 0)
    assert value("lost_total") == 1
    node.adapter.close()
    assert value("lookups_total") is None


def test_a_process_without_room_for_threads_goes_on_alone(
    make_node: MakeNode, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("one")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        redis.kill()
        assert node.store(NUMBERS)
        node.wait_answering(is_answering=False)
        assert node.fetch([*NUMBERS, 99]) == [*ALL, False]
        redis.start()
    node.wait_answering()
    assert node.store([99])
    stored_in(node, 1)


def test_what_was_promoted_outlives_the_shared_tier_and_a_restart(
    make_node: MakeNode, redis: Redis, tmp_path: Path
) -> None:
    first, second = make_node("first"), make_node("second")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    assert second.fetch(NUMBERS) == ALL
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    second.adapter.close()
    redis.kill()
    with Node(tmp_path / "second", redis.port, **PATIENT) as again:
        assert again.fetch(NUMBERS) == ALL
        assert not again.tier["is_answering"]


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
    assert second.fetch(NUMBERS) == [True] * 3 + [False] * 9
    redis.resume()
    second.wait_answering()
    assert second.fetch(NUMBERS) == ALL


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


def test_a_full_buffer_costs_the_shared_tier_and_not_the_store(
    make_node: MakeNode, network: Network
) -> None:
    options = {"shared_buffer": 4 * CHUNK_BYTES}
    node = make_node("one", network.port, **options)
    assert node.store(NUMBERS)
    assert node.tier["skipped_stores"] == len(NUMBERS) - 4
    until("the buffer is free", lambda: node.tier["buffered_bytes"] == 0)
    assert node.fetch(NUMBERS) == ALL
    other = make_node("two", **options)
    assert sum(bool(one) for one in other.fetch(NUMBERS)) == 4
    # One that has no room to come is a miss.
    last = make_node("three", shared_buffer=2 * CHUNK_BYTES)
    assert sum(bool(one) for one in last.fetch(NUMBERS)) == 2
    assert last.tier["skipped_loads"] == 2


def test_locks_of_both_are_given_back(make_node: MakeNode) -> None:
    first, second = make_node("first"), make_node("second")
    first.store(NUMBERS)
    stored_in(first, len(NUMBERS))
    for _ in range(3):
        assert second.lookup(NUMBERS) == ALL
        second.unlock(NUMBERS)
    assert second.fetch(NUMBERS) == ALL
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    assert second.fetch(NUMBERS) == ALL
    assert second.adapter.report_status()["locked_keys"] == 0
    assert not second.adapter._shared_locks
    connection = second.adapter._tier._link.connection
    assert connection is not None
    until("nothing is locked there", lambda: not connection._locked)


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "'shared_tier' = None"),
        ({"shared_tier": "redis://host"}, "'shared_tier' = 'redis://host'"),
        ({"shared_tier": {}}, "missing 'type' field"),
        ({"shared_tier": {"type": "nothing"}}, "unknown adapter type 'nothing'"),
        ({"shared_tier": {"type": "resp"}}, "host must be"),
        ({"shared_tier": {"type": "p2p"}}, "a second --l2-adapter"),
        (
            {"shared_tier": {"type": "fs", "base_path": "/x", "serde": {}}},
            "beside 'adapter_params'",
        ),
        ({"shared_buffer": "12 parsecs"}, "'shared_buffer' = '12 parsecs'"),
        ({"shared_lookup_deadline_ms": 0}, "'shared_lookup_deadline_ms' = 0"),
        ({"shared_load_deadline_ms": "soon"}, "'shared_load_deadline_ms' = 'soon'"),
        ({"shared_load_deadline_ms": True}, "'shared_load_deadline_ms' = True"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(options: dict[str, Any], told: str) -> None:
    own = {} if not options or "shared_tier" in options else {"shared_tier": MOCK}
    parameters = {"path": "/x", "capacity": "1GiB", **own, **options}
    with pytest.raises(kvring.ConfigError, match=re.escape(told)):
        KvringSharedL2AdapterConfig.from_dict(parameters)
