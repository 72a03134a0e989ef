"""The fleet: nodes with memory, a disk and a GPU, a router before them, a shared tier behind."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

from benches.fleet.traces import Request

Routing = Literal["random", "prefix"]
_Process = Generator[simpy.Event, Any, None]

# A node that has so many more requests than the least busy one does not get another by prefix.
_IMBALANCE = 4
# As kvring: after loads that were late a node asks the shared tier less and less.
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Rates:
    """How fast things are, each of one node but the last."""

    prefill_tokens_per_s: float = 10_000
    disk_bytes_per_s: float = 3.7e9
    network_bytes_per_s: float = 2.5e9
    shared_bytes_per_s: float = 20e9


@dataclass(frozen=True)
class Fleet:
    """How many nodes there are, and what each holds; 0 for no such tier, None for no limit."""

    nodes: int
    routing: Routing = "random"
    memory_chunks: int | None = 500
    disk_chunks: int | None = 15_000
    shared_chunks: int | None = 0
    chunk_tokens: int = 256
    chunk_bytes: int = 32 << 20
    # A load from the shared tier that takes longer is computed instead.
    load_deadline_s: float = 5.0


@dataclass
class Outcome:
    """What became of all requests."""

    # Chunks by where they were found: "memory", "disk", "shared", "computed".
    chunks: Counter[str] = field(default_factory=Counter)
    # Bytes: "disk read", "disk written", "from shared", "to shared".
    moved: Counter[str] = field(default_factory=Counter)
    first_token_s: list[float] = field(default_factory=list)
    # Where each request went, by number, in the order of their coming.
    nodes: list[int] = field(default_factory=list)
    # Found, and computed all the same: they came too late.
    late_chunks: int = 0

    def hit_ratio(self) -> float:
        """Return the share of chunks that were found anywhere."""
        return 1 - self.chunks["computed"] / max(self.chunks.total(), 1)

    def first_token_at(self, share: float) -> float:
        """Return the seconds within which this share of requests had their first token."""
        ordered = sorted(self.first_token_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Tier:
    """Chunks, of which those that were used longest ago go first."""

    def __init__(self, limit: int | None) -> None:
        """Have none yet."""
        self._limit = limit
        self._chunks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, chunk: int) -> bool:
        """Say whether it is there; that counts as no use."""
        return chunk in self._chunks

    def use(self, chunk: int) -> bool:
        """Have a chunk there, as the last one used; say whether it is new."""
        if self._limit == 0:
            return False
        is_new = chunk not in self._chunks
        self._chunks[chunk] = None
        self._chunks.move_to_end(chunk)
        if self._limit is not None and len(self._chunks) > self._limit:
            self._chunks.popitem(last=False)
        return is_new


class _Node:
    def __init__(self, environment: simpy.Environment, fleet: Fleet) -> None:
        self.memory, self.disk = Tier(fleet.memory_chunks), Tier(fleet.disk_chunks)
        self.gpu, self.drive, self.network = (simpy.Resource(environment) for _ in range(3))
        self.requests = 0
        self._asks_again_s, self._pause_s = 0.0, 0.0

    def asks(self, now_s: float) -> bool:
        """Say whether it asks the shared tier."""
        return now_s >= self._asks_again_s

    def note_load(self, now_s: float, waited_s: float | None) -> None:
        """Note that a load from the shared tier came in time, or for how long it was waited for."""
        if waited_s is None:
            self._pause_s = 0.0
        elif self.asks(now_s):
            self._pause_s = min(max(2 * self._pause_s, waited_s), _LONGEST_PAUSE_S)
            self._asks_again_s = now_s + self._pause_s


class _Router:
    """Sends a request to any node, or to the one that had most of its prefix before."""

    def __init__(self, nodes: list[_Node], routing: Routing, generator: random.Random) -> None:
        self._nodes = nodes
        self._routing = routing
        self._random = generator
        self._had: dict[int, int] = {}

    def choose(self, chunks: tuple[int, ...]) -> int:
        number = self._random.randrange(len(self._nodes))
        if self._routing == "prefix":
            known = next((self._had[chunk] for chunk in reversed(chunks) if chunk in self._had), -1)
            least = min(node.requests for node in self._sample())
            if known >= 0 and self._nodes[known].requests <= least + _IMBALANCE:
                number = known
            for chunk in chunks:
                self._had[chunk] = number
        return number

    def _sample(self) -> list[_Node]:
        # All of 1,000 would have to be asked for each request.
        return self._random.sample(self._nodes, min(len(self._nodes), 8))


def simulate(trace: Iterable[Request], fleet: Fleet, rates: Rates, seed: int = 0) -> Outcome:
    """Play a trace to a fleet.

    Args:
        trace: Requests in the order of their times.
        fleet: Its nodes; all begin empty.
        rates: How fast they are.
        seed: Of the router's choices.

    Returns:
        What was found where, what was moved, and when first tokens came.
    """
    environment = simpy.Environment()
    nodes = [_Node(environment, fleet) for _ in range(fleet.nodes)]
    router = _Router(nodes, fleet.routing, random.Random(seed))
    shared, nowhere, outcome = Tier(fleet.shared_chunks), Tier(0), Outcome()
    # As many nodes as it serves at their full rate; others wait. One gets no more than all.
    streams = max(round(rates.shared_bytes_per_s / rates.network_bytes_per_s), 1)
    shared_way = simpy.Resource(environment, capacity=streams)

    def serve(request: Request, node: _Node) -> _Process:
        began_s = environment.now
        asked = shared if node.asks(began_s) else nowhere
        places = _places(request.chunks, node, asked)
        outcome.chunks.update(places)
        counts = Counter(places)
        # LMCache loads from all tiers at the same time, and the GPU waits for all.
        disk = environment.process(_hold(environment, [node.drive], counts["disk"] * disk_s))
        ways = [shared_way, node.network]
        network = environment.process(_hold(environment, ways, counts["shared"] * network_s))
        _note(request.chunks, places, node, asked, outcome, fleet.chunk_bytes)
        yield disk & (network | environment.timeout(fleet.load_deadline_s))
        computed = counts["computed"]
        if counts["shared"]:
            in_time = network.processed
            node.note_load(environment.now, None if in_time else fleet.load_deadline_s)
        if not network.processed:
            # It still comes, for the next time.
            late = len(places) - places.index("shared") - computed
            outcome.late_chunks += late
            computed += late
        tokens = computed * fleet.chunk_tokens + request.last_tokens
        yield environment.process(
            _hold(environment, [node.gpu], tokens / rates.prefill_tokens_per_s)
        )
        outcome.first_token_s.append(environment.now - began_s)
        node.requests -= 1

    def arrive() -> _Process:
        for request in trace:
            yield environment.timeout(max(request.at_s - environment.now, 0))
            number = router.choose(request.chunks)
            outcome.nodes.append(number)
            node = nodes[number]
            node.requests += 1
            environment.process(serve(request, node))

    disk_s = fleet.chunk_bytes / rates.disk_bytes_per_s
    network_s = fleet.chunk_bytes * max(
        1 / rates.network_bytes_per_s, streams / rates.shared_bytes_per_s
    )
    environment.process(arrive())
    environment.run()
    return outcome


def _hold(
    environment: simpy.Environment, resources: list[simpy.Resource], seconds: float
) -> _Process:
    """Hold resources, one after the other, for a time; none for no time."""
    if seconds:
        held = [resource.request() for resource in resources]
        for request in held:
            yield request
        yield environment.timeout(seconds)
        for resource, request in zip(resources, held, strict=True):
            resource.release(request)


def _places(chunks: tuple[int, ...], node: _Node, shared: Tier) -> list[str]:
    """Say where each chunk comes from; behind the first that is nowhere all are computed."""
    places: list[str] = []
    for chunk in chunks:
        tiers = (("memory", node.memory), ("disk", node.disk), ("shared", shared))
        place = next((name for name, tier in tiers if chunk in tier), "computed")
        if place == "computed":
            break
        places.append(place)
    return places + ["computed"] * (len(chunks) - len(places))


def _note(
    chunks: tuple[int, ...],
    places: list[str],
    node: _Node,
    shared: Tier,
    outcome: Outcome,
    chunk_bytes: int,
) -> None:
    """Have each chunk where it is from now on, and count what that moves."""
    for chunk, place in zip(chunks, places, strict=True):
        node.memory.use(chunk)
        if place == "memory":
            continue
        if place == "disk":
            outcome.moved["disk read"] += chunk_bytes
        if place == "shared":
            outcome.moved["from shared"] += chunk_bytes
        if node.disk.use(chunk):
            outcome.moved["disk written"] += chunk_bytes
        if shared.use(chunk) and place == "computed":
            outcome.moved["to shared"] += chunk_bytes
