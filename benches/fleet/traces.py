"""Requests to a fleet, made by rule or as a trace of others has them."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """A prompt: when it comes, its whole chunks by number, and the tokens behind them."""

    at_s: float
    chunks: tuple[int, ...]
    last_tokens: int = 0


@dataclass(frozen=True)
class Conversations:
    """Conversations over common system prompts, by rule."""

    requests_per_s: float
    requests: int
    # Zipf's law says how often each is used.
    system_prompts: int = 50
    system_chunks: int = 8
    turns: float = 5.0
    chunks_per_turn: int = 3
    pause_s: float = 60.0
    last_tokens: int = 128

    def play(self, seed: int) -> Iterator[Request]:
        """Yield requests in the order of their times.

        Each begins a conversation, or goes on with one whose pause is over.
        """
        choose = random.Random(seed)
        weights = [1 / rank for rank in range(1, self.system_prompts + 1)]
        waiting: list[tuple[float, tuple[int, ...]]] = []
        at_s, next_chunk = 0.0, self.system_prompts * self.system_chunks
        for _ in range(self.requests):
            at_s += choose.expovariate(self.requests_per_s)
            if waiting and waiting[0][0] <= at_s:
                _, chunks = heapq.heappop(waiting)
            else:
                (prompt,) = choose.choices(range(self.system_prompts), weights)
                first = prompt * self.system_chunks
                chunks = tuple(range(first, first + self.system_chunks))
            chunks += tuple(range(next_chunk, next_chunk + self.chunks_per_turn))
            next_chunk += self.chunks_per_turn
            yield Request(at_s, chunks, self.last_tokens)
            if choose.random() < 1 - 1 / self.turns:
                heapq.heappush(waiting, (at_s + choose.expovariate(1 / self.pause_s), chunks))


def read(path: Path) -> list[Request]:
    """Read a trace of Mooncake: lines of JSON with `timestamp` (ms) and `hash_ids`.

    Raises:
        ValueError: It is not such a file; the message names the line.
    """
    with path.open(encoding="utf-8") as lines:
        requests = [_request(path, number, line) for number, line in enumerate(lines, 1)]
    return sorted(requests, key=lambda request: request.at_s)


def _request(path: Path, number: int, line: str) -> Request:
    try:
        fields = json.loads(line)
        chunks = tuple(int(block) for block in fields["hash_ids"])
        return Request(float(fields["timestamp"]) / 1000, chunks)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}, line {number}: {error!r}") from error
