"""All that may befall a tier that nodes share, and what kvring in front of it does then."""

import gc
import re
import threading
from pathlib import Path

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")


from tests.python.conftest import until
from tests.python.lmcache.shared_tiers import (
    ALL,
    CHUNK_BYTES,
    NONE,
    NUMBERS,
    PATIENT,
    MakeNode,
    Node,
    keys_of,
    stored_in,
)
from tests.support.servers import Network, Redis

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
    assert re.search("uses its local store alone: .*(Connection|connecting)", told[0])
    assert "answers again" in told[1]
    assert node.tier["lost"] == 1
    assert node.store(NUMBERS, version=1)
    stored_in(node, 6 + len(NUMBERS))
    assert make_node("two").fetch(NUMBERS, version=1) == ALL


def test_a_shared_tier_that_hangs_costs_one_deadline_and_then_nothing(
    make_node: MakeNode, redis: Redis
) -> None:
    first = make_node("first")
    first.share()
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
    # Its deadline is short: on a busy machine it may be late once more.
    until("it finds them again", lambda: second.fetch(NUMBERS) == ALL)


def node_with_late_loads(make_node: MakeNode, network: Network) -> Node:
    """Return a node for which chunks still come that it has answered as misses."""
    make_node("first").share()
    node = make_node("second", network.port, shared_load_deadline_ms=50)
    assert node.lookup(NUMBERS) == ALL
    network.bytes_per_s = len(NUMBERS) * CHUNK_BYTES
    # Nothing is written into its memory later: `load` compares what it got, and this is a miss.
    assert node.load(NUMBERS) == NONE
    return node


def test_what_comes_too_late_is_a_miss_and_is_there_the_next_time(
    make_node: MakeNode, network: Network
) -> None:
    second = node_with_late_loads(make_node, network)
    network.bytes_per_s = None
    until("they are promoted", lambda: second.tier["promoted"] == len(NUMBERS))
    assert second.fetch(NUMBERS) == ALL
    assert second.tier["loaded_bytes"] == 0


def test_what_comes_too_late_is_not_kept_in_another_epoch(
    make_node: MakeNode, network: Network
) -> None:
    second = node_with_late_loads(make_node, network)
    second.adapter._store.set_epoch("step 1")
    network.bytes_per_s = None
    until("all has come", lambda: second.tier["buffered_bytes"] == 0)
    assert second.tier["promoted"] == second.adapter._store.stats()["keys"] == 0


def test_a_chunk_that_goes_after_its_lookup_is_a_miss_at_once(
    make_node: MakeNode, redis: Redis
) -> None:
    first, second = make_node("first"), make_node("second")
    first.share()
    assert second.lookup(NUMBERS) == ALL
    redis.ask("del", redis.ask("keys", "test/model@*")[0])
    loaded = second.load(NUMBERS)
    assert loaded.count(True) == len(NUMBERS) - 1
    assert loaded.count(False) == 1
    assert second.tier["lost"] == 0


def test_hits_of_its_own_wait_for_no_slow_tier(make_node: MakeNode, network: Network) -> None:
    node = make_node("one", network.port)
    node.share()
    # From now on an answer takes longer than a hang.
    network.bytes_per_s = 0.1
    for _ in range(20):
        assert node.fetch(NUMBERS) == ALL
    assert node.store([77])
    assert node.fetch([77]) == [True]


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
