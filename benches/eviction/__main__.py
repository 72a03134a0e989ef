"""`python -m benches.eviction`: hit ratios of the eviction policies on traces.

The table has chunks up to the first miss, all of 1 MiB, for each size of the cache as a fraction
of all chunks of the trace. The JSON has all that the simulator says: other sizes of chunks, orders,
variants, and the same behind a cache in memory.
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
from benches.tables import print_table

_REPOSITORY = Path(__file__).resolve().parents[2]
_OUTPUT = _REPOSITORY / "target" / "bench" / "eviction.json"
_PLAIN = {"sizes": "one", "order": "forward", "variant": "", "behind_memory": False}


def main() -> int:
    """Simulate, print the table and write the JSON. Returns the exit status."""
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
    header, *rows = table_of(document)
    print_table(
        "Chunks found up to the first miss, %, and the mean by the best one's", header, rows
    )
    for trace in PUBLIC_TRACES:
        if trace.name not in found:
            print(f"skipped: {trace.file_name} is not in {arguments.traces}")
    print(f"Results: {_OUTPUT}")
    return 0


def table_of(document: Document) -> list[list[str]]:
    """Return the header and a row for each trace and size, the mean of the ratios last."""
    cells = [one for one in document["cells"] if _PLAIN.items() <= one.items()]
    policies = list(dict.fromkeys(one["policy"] for one in cells))
    rows = [["trace", "of all chunks", *policies]]
    shares: dict[str, list[float]] = {policy: [] for policy in policies}
    for trace, fraction in dict.fromkeys((one["trace"], one["fraction"]) for one in cells):
        ratios = {
            one["policy"]: _hit_ratio(one)
            for one in cells
            if (one["trace"], one["fraction"]) == (trace, fraction)
        }
        rows.append([trace, f"1/{fraction}", *(f"{100 * ratios[one]:.1f}" for one in policies)])
        best = max(ratios.values())
        for policy in policies:
            if best > 0:
                shares[policy].append(ratios[policy] / best)
    means = [f"{statistics.fmean(shares[one]):.3f}" for one in policies if shares[one]]
    return [*rows, ["mean of the best one's", "", *means]]


def _hit_ratio(cell: dict[str, Any]) -> float:
    chunks = cell["chunks"]
    return chunks["prefix_hits"] / chunks["lookups"] if chunks["lookups"] else 0.0


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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
