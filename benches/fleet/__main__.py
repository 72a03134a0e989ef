"""`python -m benches.fleet`: what fleets of 1 to 1,000 nodes find and move, by simulation."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.fleet.model import Fleet, Outcome, Rates, Routing, simulate
from benches.fleet.traces import Conversations, Request, read
from benches.results import HELP, Section, write_results
from benches.tables import make_table, print_table

_OUTPUT = Path(__file__).resolve().parents[2] / "target" / "bench" / "fleet.json"
_PLACES = ("memory", "disk", "shared")
_MOVED = ("disk read", "disk written", "from shared", "to shared")
_HEADER = (
    "nodes",
    "routing",
    "shared tier",
    "found, %",
    *(f"{place}, %" for place in _PLACES),
    "too late, %",
    "first token p50, s",
    "p99, s",
    *(f"{way}, MB a request" for way in _MOVED),
)


@dataclass(frozen=True)
class _Case:
    nodes: int
    routing: Routing
    has_shared: bool


def main() -> None:
    """Simulate, print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1000])
    parser.add_argument("--requests", type=int, default=300, help="of each node")
    parser.add_argument("--requests-per-s", type=float, default=0.8, help="of each node")
    parser.add_argument(
        "--trace",
        type=Path,
        help="Mooncake's form, instead of one by rule: the same for each number of nodes; its "
        "blocks have 512 tokens",
    )
    parser.add_argument("--chunk-tokens", type=int, default=Fleet.chunk_tokens)
    parser.add_argument("--chunk-bytes", type=int, default=Fleet.chunk_bytes)
    parser.add_argument("--load-deadline-s", type=float, default=Fleet.load_deadline_s)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, metavar="FILE", help=HELP)
    for name, value in vars(Rates()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value)
    arguments = parser.parse_args()
    rates = Rates(**{name: getattr(arguments, name) for name in vars(Rates())})
    rows = [
        _row(case, _simulate(case, arguments, rates))
        for nodes in arguments.nodes
        for routing in ("random", "prefix")
        for has_shared in (False, True)
        for case in [_Case(nodes, routing, has_shared)]
    ]
    table = make_table("Fleets, by simulation", _HEADER, [[*map(str, row)] for row in rows])
    print_table(table)
    if arguments.results:
        _write_results(arguments, rates, Section(table))
    _OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    document = [dict(zip(_HEADER, row, strict=True)) for row in rows]
    _OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"Results: {_OUTPUT}")


def _write_results(arguments: argparse.Namespace, rates: Rates, section: Section) -> None:
    fleet = Fleet(1)
    load = (
        f"{arguments.requests} requests of each node, {arguments.requests_per_s} a second"
        if arguments.trace is None
        else f"The trace {arguments.trace.name}"
    )
    conditions = [
        "A discrete-event simulation: the machine does not change the figures.",
        f"{load}, seed {arguments.seed}.",
        f"A chunk: {arguments.chunk_tokens} tokens, {arguments.chunk_bytes:,} bytes.",
        f"A node: {fleet.memory_chunks} chunks of memory, {fleet.disk_chunks:,} chunks of disk.",
        f"The shared tier has no limit. Loads over {arguments.load_deadline_s} s are late.",
        "Rates: " + ", ".join(f"{name} {value:,.0f}" for name, value in vars(rates).items()) + ".",
        "memory, disk, shared: where the chunks of the prompts were found.",
    ]
    title = "Fleets with and without a shared tier"
    write_results(arguments.results, title, "make fleet", conditions, [section])


def _simulate(case: _Case, arguments: argparse.Namespace, rates: Rates) -> Outcome:
    fleet = Fleet(
        case.nodes,
        case.routing,
        shared_chunks=None if case.has_shared else 0,
        chunk_tokens=arguments.chunk_tokens,
        chunk_bytes=arguments.chunk_bytes,
        load_deadline_s=arguments.load_deadline_s,
    )
    return simulate(_trace(case, arguments), fleet, rates, arguments.seed)


def _trace(case: _Case, arguments: argparse.Namespace) -> list[Request]:
    if arguments.trace is not None:
        return read(arguments.trace)
    conversations = Conversations(
        requests_per_s=arguments.requests_per_s * case.nodes,
        requests=arguments.requests * case.nodes,
    )
    return list(conversations.play(arguments.seed))


def _row(case: _Case, outcome: Outcome) -> list[Any]:
    total, requests = outcome.chunks.total(), len(outcome.first_token_s)
    counts = [*(outcome.chunks[name] for name in _PLACES), outcome.late_chunks]
    return [
        case.nodes,
        case.routing,
        "yes" if case.has_shared else "no",
        round(100 * outcome.hit_ratio(), 1),
        *(round(100 * count / total) for count in counts),
        *(round(outcome.first_token_at(share), 2) for share in (0.5, 0.99)),
        *(round(outcome.moved[name] / requests / 1e6) for name in _MOVED),
    ]


if __name__ == "__main__":
    main()
