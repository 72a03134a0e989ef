"""`python -m benches.eviction`: what the eviction policies find in traces.

One table has the chunks up to the first miss for each trace and size of the cache, the other one
means over traces: what a policy finds and writes, by what `lfu` does, and what it finds by the best
of those that learn nothing. Where `lfu` finds nothing, a cell is left out. The JSON has the counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benches.eviction.simulation import Document, simulate
from benches.eviction.traces import PUBLIC_TRACES, TraceError, convert, find
from benches.results import HELP, Section, write_results
from benches.tables import make_table, print_table

_REPOSITORY = Path(__file__).resolve().parents[2]
_OUTPUT = _REPOSITORY / "target" / "bench" / "eviction.json"
_LEARN_NOTHING = ("lru", "lfu", "fifo", "mru")


def main() -> int:
    """Simulate, print the tables and write the JSON. Returns the exit status."""
    arguments = _parse_arguments()
    found = {
        trace.name: path
        for trace in PUBLIC_TRACES
        if (path := find(trace, arguments.traces)) is not None
    }
    try:
        document = _simulate(found, arguments.requests)
    except TraceError as error:
        print(f"eviction: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"eviction: the simulator did not run: {error}", file=sys.stderr)
        return 1
    _OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    _OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    tables = [
        make_table(title, header, rows)
        for title, (header, *rows) in (
            ("Means of ratios to what other policies find and write", means_of(document)),
            ("Chunks found up to the first miss, %", hits_of(document)),
        )
    ]
    for table in tables:
        print_table(table)
    missing = [trace.file_name for trace in PUBLIC_TRACES if trace.name not in found]
    for name in missing:
        print(f"skipped: {name} is not in {arguments.traces}")
    if arguments.results:
        _write_results(arguments, missing, [Section(table) for table in tables])
    print(f"Results: {_OUTPUT}")
    return 0


def _write_results(
    arguments: argparse.Namespace, missing: list[str], sections: list[Section]
) -> None:
    conditions = [
        "A simulation with kvring's own eviction code: the machine does not change the figures.",
        "A request loads its chunks up to the first miss, which are the hits, and stores the rest.",
        "memory: an LRU cache above the disk. Sizes are parts of the chunks of the trace.",
        "All caches start empty. All chunks have one size.",
        "Sets: public (benches/traces/README.md), made by rule, adversarial by rule.",
        "`adaptive+admit` is the default of kvring. `min` knows the future.",
    ]
    if missing:
        conditions.append(f"Not played, as the files were missing: {', '.join(missing)}.")
    if arguments.requests:
        conditions.append(f"{arguments.requests} requests of each trace that is made by rule.")
    title = "Eviction policies on traces"
    write_results(arguments.results, title, "make eviction", conditions, sections)


def hits_of(document: Document) -> list[list[str]]:
    """Return the header and a row for each trace and cache."""
    lookups = {trace["name"]: trace["lookups"] for trace in document["traces"]}
    policies = list(dict.fromkeys(cell["policy"] for cell in document["cells"]))
    rows = [["trace", "memory", "disk", *policies]]
    for (trace, memory, fraction), cells in _by_cache(document).items():
        ratios = (cells[policy]["prefix_hits"] / lookups[trace] for policy in policies)
        hits = (f"{100 * ratio:.1f}" for ratio in ratios)
        rows.append([trace, _share(memory), _share(fraction), *hits])
    return rows


def means_of(document: Document) -> list[list[str]]:
    """Return the header and a row for each set of traces, kind of cache and policy."""
    sets = {trace["name"]: trace["set"] for trace in document["traces"]}
    ratios: dict[tuple[Any, ...], list[tuple[float, float, float]]] = {}
    for (trace, memory, _), cells in _by_cache(document).items():
        hits = {policy: cell["prefix_hits"] for policy, cell in cells.items()}
        for policy, cell in cells.items() if hits["lfu"] else ():
            best = max(hits[one] for one in _LEARN_NOTHING)
            group = ratios.setdefault((sets[trace], memory, policy), [])
            writes = cell["stores"] / cells["lfu"]["stores"]
            group.append((hits[policy] / hits["lfu"], hits[policy] / best, writes))
    header = ["set", "memory", "policy", "cells"]
    rows = [[*header, "hits / lfu", "worst", "hits / best of four", "worst", "writes / lfu"]]
    for (name, memory, policy), group in ratios.items():
        by_lfu, by_best, writes = zip(*group, strict=True)
        mean = statistics.fmean
        figures = (mean(by_lfu), min(by_lfu), mean(by_best), min(by_best), mean(writes))
        texts = (f"{figure:.3f}" for figure in figures)
        rows.append([name, _share(memory), policy, str(len(group)), *texts])
    return rows


def _by_cache(document: Document) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Return the cells of all policies for each trace, memory and fraction."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for cell in document["cells"]:
        key = (cell["trace"], cell["memory"], cell["fraction"])
        found.setdefault(key, {})[cell["policy"]] = cell
    return found


def _share(fraction: int | None) -> str:
    return f"1/{fraction}" if fraction else "none"


def _simulate(found: dict[str, Path], requests: int | None) -> Document:
    with tempfile.TemporaryDirectory() as directory:
        converted = {}
        for name, source in found.items():
            converted[name] = Path(directory, name)
            convert(source, converted[name])
        return simulate(converted, requests=requests)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.eviction", description=__doc__)
    parser.add_argument(
        "--traces",
        type=Path,
        default=_REPOSITORY / "benches" / "traces",
        help="where traces of others lie (default: benches/traces)",
    )
    parser.add_argument("--requests", type=int, help="of each trace made by rule: a first look")
    parser.add_argument("--results", type=Path, metavar="FILE", help=HELP)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
