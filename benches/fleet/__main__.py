"""`python -m benches.fleet`: what fleets of 1 to 1,000 nodes find and move, by simulation."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.compare.tables import Table, print_table
from benches.fleet.model import Fleet, Outcome, Rates, Routing, simulate
from benches.fleet.traces import Conversations, Request, read

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_BEGIN, _END = "<!-- fleet: made by make fleet -->", "<!-- fleet: end -->"


@dataclass(frozen=True)
class _Case:
    nodes: int
    routing: Routing
    has_shared: bool

    @property
    def name(self) -> str:
        return f"{self.routing} routing, {'a' if self.has_shared else 'no'} shared tier"


def main() -> None:
    """Simulate, print a table, and put it and a plot into docs/scale-out.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1000])
    parser.add_argument("--requests", type=int, default=300, help="of each node")
    parser.add_argument("--requests-per-s", type=float, default=0.8, help="of each node")
    parser.add_argument(
        "--trace",
        type=Path,
        help="Mooncake's form, instead of one by rule: the same for each number of nodes, and only "
        "printed; its blocks have 512 tokens",
    )
    parser.add_argument("--chunk-tokens", type=int, default=Fleet.chunk_tokens)
    parser.add_argument("--chunk-bytes", type=int, default=Fleet.chunk_bytes)
    parser.add_argument("--load-deadline-s", type=float, default=Fleet.load_deadline_s)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-document", action="store_true", help="only print")
    for name, value in vars(Rates()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value)
    arguments = parser.parse_args()
    writes = not arguments.no_document and arguments.trace is None
    if writes:
        # Missed before the minutes that the simulation takes.
        importlib.import_module("matplotlib")
    rates = Rates(**{name: getattr(arguments, name) for name in vars(Rates())})
    cases = [
        _Case(nodes, routing, has_shared)
        for nodes in arguments.nodes
        for routing in ("random", "prefix")
        for has_shared in (False, True)
    ]
    outcomes = {case: _simulate(case, arguments, rates) for case in cases}
    table = _table(outcomes)
    print_table(table)
    if writes:
        _write(table, outcomes, rates)


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


def _table(outcomes: dict[_Case, Outcome]) -> Table:
    columns = [
        "nodes",
        "routing",
        "shared tier",
        "found",
        "in memory; on disk; shared; too late",
        "first token p50; p99",
        "a request: disk read; written; from shared; to shared",
    ]
    rows = []
    for case, outcome in outcomes.items():
        total, requests = outcome.chunks.total(), len(outcome.first_token_s)
        counts = [*(outcome.chunks[name] for name in _PLACES), outcome.late_chunks]
        parts = [f"{100 * count / total:.0f}" for count in counts]
        moved = [f"{outcome.moved[name] / requests / 1e6:,.0f}" for name in _MOVED]
        rows.append(
            [
                f"{case.nodes:,}",
                case.routing,
                "yes" if case.has_shared else "no",
                f"{100 * outcome.hit_ratio():.1f} %",
                "; ".join(parts) + " %",
                f"{outcome.first_token_at(0.5):.2f}; {outcome.first_token_at(0.99):.2f} s",
                "; ".join(moved) + " MB",
            ]
        )
    return Table("Fleets, by simulation", columns, rows)


_PLACES = ("memory", "disk", "shared")
_MOVED = ("disk read", "disk written", "from shared", "to shared")


def _write(table: Table, outcomes: dict[_Case, Outcome], rates: Rates) -> None:
    page = _DOCS / "scale-out.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    image = _plot(outcomes)
    told = (
        f"Rates: {rates.prefill_tokens_per_s:,.0f} tokens/s of prefill, a disk of "
        f"{rates.disk_bytes_per_s / 1e9:g} GB/s and a network of "
        f"{rates.network_bytes_per_s / 1e9:g} GB/s on each node, a shared tier of "
        f"{rates.shared_bytes_per_s / 1e9:g} GB/s in all."
    )
    lines = [
        _BEGIN,
        f"![Hit ratio and first tokens by the number of nodes](images/{image.name})",
        "",
        "| " + " | ".join(table.header) + " |",
        "|" + "---|" * len(table.header),
        *("| " + " | ".join(row) + " |" for row in table.rows),
        "",
        told,
        "",
        _END,
    ]
    page.write_text(before + "\n".join(lines) + after, encoding="utf-8")


def _plot(outcomes: dict[_Case, Outcome]) -> Path:
    matplotlib = importlib.import_module("matplotlib")
    # No display is needed.
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    drawn, (found, first_token) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for name in dict.fromkeys(case.name for case in outcomes):
        cases = [case for case in outcomes if case.name == name]
        nodes = [case.nodes for case in cases]
        ratios = [100 * outcomes[case].hit_ratio() for case in cases]
        seconds = [outcomes[case].first_token_at(0.99) for case in cases]
        found.plot(nodes, ratios, label=name, marker="o", markersize=4)
        first_token.plot(nodes, seconds, label=name, marker="o", markersize=4)
    for panel, title in ((found, "chunks found, %"), (first_token, "first token, p99, s")):
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel("nodes")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    drawn.tight_layout()
    file = _DOCS / "images" / "fleet.png"
    drawn.savefig(file, dpi=110)
    pyplot.close(drawn)
    return file


if __name__ == "__main__":
    main()
