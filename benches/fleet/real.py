"""A trace on real nodes, each a process with a kvring store, in front of one real Redis."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benches.fleet.model import Fleet, Outcome, Rates
from benches.fleet.traces import Request
from tests.support.lmcache_command import lmcache_environment
from tests.support.servers import Redis
from tests.support.two_nodes import shared_spec

_ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 300.0


def play(
    trace: Sequence[Request],
    routes: Sequence[int],
    fleet: Fleet,
    rates: Rates,
    directory: Path,
    *,
    one_by_one: bool,
) -> Outcome:
    """Play a trace to real nodes, as `model.simulate` plays it to simulated ones.

    Args:
        trace: Requests in the order of their times.
        routes: The node of each.
        fleet: How many nodes there are, and the size of a chunk. Memory keeps nothing.
        rates: What prefill takes; all else takes what it takes.
        directory: Where the nodes have their stores.
        one_by_one: Whether each request waits for the one before, and for all its stores, rather
            than for its time.

    Returns:
        What was found where, and when first tokens came.

    Raises:
        RuntimeError: A node failed, or found wrong bytes.
    """
    with Redis() as redis, ExitStack() as stack:
        nodes = [
            stack.enter_context(_node(directory / str(number), redis, fleet, rates, one_by_one))
            for number in range(fleet.nodes)
        ]
        began_s = time.monotonic()
        for number, (request, route) in enumerate(zip(trace, routes, strict=True)):
            if not one_by_one:
                time.sleep(max(began_s + request.at_s - time.monotonic(), 0))
            nodes[route].ask(number, request)
            if one_by_one:
                nodes[route].wait_for(number)
        answers = [answer for node in nodes for answer in node.end()]
    return _outcome(answers, len(trace))


class _Node:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, number: int, request: Request) -> None:
        assert self._process.stdin is not None
        asked = {
            "number": number,
            "chunks": request.chunks,
            "last_tokens": request.last_tokens,
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def wait_for(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has(number) or self._has_ended, _DEADLINE_S)
            if not self._has(number):
                text = "its node has ended" if self._has_ended else f"within {_DEADLINE_S:g} s"
                raise RuntimeError(f"request {number} is not answered: {text}")

    def end(self) -> list[dict[str, Any]]:
        """Have it serve what it was asked; return all answers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(_DEADLINE_S):
            raise RuntimeError(f"a node ended with status {self._process.returncode}")
        self._reader.join()
        return self._answers

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # LMCache writes there, too.
            if line.startswith("{"):
                with self._changed:
                    self._answers.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _has(self, number: int) -> bool:
        return any(answer["number"] == number for answer in self._answers)


@contextmanager
def _node(
    path: Path, redis: Redis, fleet: Fleet, rates: Rates, one_by_one: bool
) -> Iterator[_Node]:
    spec = shared_spec(path, redis.adapter, shared_buffer="2GiB")
    command = [sys.executable, "-m", "benches.fleet.node", json.dumps(spec)]
    command += ["--chunk-bytes", str(fleet.chunk_bytes), "--chunk-tokens", str(fleet.chunk_tokens)]
    command += ["--prefill-tokens-per-s", str(rates.prefill_tokens_per_s)]
    with subprocess.Popen(
        command + ["--one-by-one"] * one_by_one,
        cwd=_ROOT,
        env=lmcache_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        node = _Node(process)
        try:
            node.wait_for(-1)
            yield node
        finally:
            node.kill()


def _outcome(answers: list[dict[str, Any]], requests: int) -> Outcome:
    served = [answer for answer in answers if answer["number"] >= 0]
    wrong = sum(answer["wrong"] for answer in served)
    if len(served) != requests or wrong:
        raise RuntimeError(
            f"{len(served)} of {requests} requests were served, {wrong} chunks wrong"
        )
    shared = sum(answer["shared"] for answer in answers)
    outcome = Outcome()
    outcome.chunks.update(
        shared=shared,
        disk=sum(answer["found"] for answer in served) - shared,
        computed=sum(answer["computed"] for answer in served),
    )
    ordered = sorted(served, key=lambda answer: int(answer["number"]))
    outcome.first_token_s = [answer["first_token_s"] for answer in ordered]
    return outcome
