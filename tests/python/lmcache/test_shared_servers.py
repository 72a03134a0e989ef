"""Two real LMCache servers in front of a Redis that is killed, and comes back, under load."""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from tests.support.bench_client import ClientRun
from tests.support.deployment import FIRST_CLIENT_BLOCKS, LATER_CLIENT_BLOCKS, restart_problems
from tests.support.servers import Redis
from tests.support.two_nodes import CHUNKS, REQUESTS, Node

pytestmark = [pytest.mark.lmcache, pytest.mark.slow]

# Each round is a process that imports LMCache.
ROUND_DEADLINE_S = 300.0


class Load:
    """Has a node serve what it has on its disk, again and again, until it is told to end."""

    def __init__(self, node: Node, stored: ClientRun) -> None:
        """Begin; `stored` has the checksums of all."""
        self.problems: list[str] = []
        self.rounds = 0
        self._node = node
        self._stored = stored
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def wait_for_rounds(self, count: int) -> None:
        """Wait until so many more have begun and ended."""
        with self._changed:
            wanted = self.rounds + count
            assert self._changed.wait_for(lambda: self.rounds >= wanted, ROUND_DEADLINE_S)

    def end(self) -> None:
        """End it; nothing may have been missed, or wrong."""
        self._is_over.set()
        self._thread.join(ROUND_DEADLINE_S)
        assert not self._thread.is_alive(), "it hangs"
        assert self.problems == []

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                self._node.server.clear_l1()
                # Other numbers of blocks, so that nothing can be left of the round before.
                blocks = LATER_CLIENT_BLOCKS + 128 * (self.rounds % 3)
                run = self._node.server.run_client(REQUESTS, blocks)
                self.problems += restart_problems(self._stored, run)
                with self._changed:
                    self.rounds += 1
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - end() tells of it
            self.problems.append(repr(error))


@pytest.mark.timeout(900)
def test_the_shared_tier_dies_and_comes_back_and_so_does_a_node(
    redis: Redis, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first, second = nodes = [Node(name, tmp_path, redis.adapter) for name in ("a", "b")]
        for node in nodes:
            stack.enter_context(node.server)
            node.wait_for("the shared tier", _is_answering)
        stored = first.server.run_client(REQUESTS, FIRST_CLIENT_BLOCKS)
        first.wait_for("what it shares", lambda tier: tier["stores"] >= CHUNKS)
        loaded = second.server.run_client(REQUESTS, LATER_CLIENT_BLOCKS)
        assert restart_problems(stored, loaded) == []
        second.wait_for("what it keeps", lambda tier: tier["promoted"] >= CHUNKS)
        load = Load(second, stored)
        load.wait_for_rounds(1)
        redis.kill()
        second.wait_for("the loss", lambda tier: not tier["is_answering"])
        load.wait_for_rounds(2)
        redis.start()
        second.wait_for("the shared tier", _is_answering)
        first.server.kill()
        load.wait_for_rounds(2)
        load.end()
        tier = second.store()["shared_tier"]
        assert tier["lost"] == 1
        assert tier["found"] == CHUNKS, "its own disk has all"
        assert second.server.metric("kvring_shared_answering") == 1
        assert second.server.metric("kvring_shared_promoted_total") == CHUNKS
        second.server.stop()


def _is_answering(tier: dict[str, Any]) -> bool:
    return bool(tier["is_answering"])
