"""`python -m benches.eviction`: hit ratios of the eviction policies."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benches.compare.tables import print_table
from benches.eviction.page import verdict, write_page
from benches.eviction.results import Results
from benches.eviction.simulation import Document, simulate
from benches.eviction.tables import CASES, order_table, ranking_table, traces_table, variants_table
from benches.eviction.traces import PUBLIC_TRACES, TraceError, convert, find

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
_RESULTS_DIRECTORY = _REPOSITORY / "benches" / "results"
_DOCS = _REPOSITORY / "docs"


def main() -> int:
    """Run what the command line asks for.

    Returns:
        The exit status.
    """
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
    output = _RESULTS_DIRECTORY / "eviction.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    results = Results(document)
    tables = [ranking_table(results, case) for case in CASES]
    for table in (traces_table(results), order_table(results), variants_table(results), *tables):
        print_table(table)
    print(verdict(results).replace("*", ""))
    print(f"Everything simulated: {output}")
    missing = [trace.file_name for trace in PUBLIC_TRACES if trace.name not in found]
    is_whole = not missing and arguments.requests is None
    directory = _DOCS if is_whole else _RESULTS_DIRECTORY
    write_page(results, directory / "eviction.md", directory / "images")
    print(f"Written: {directory / 'eviction.md'}")
    if missing:
        print(
            f"skipped: {', '.join(missing)}: not in {arguments.traces} (benches/traces/README.md);"
            " docs/eviction.md stays as it is"
        )
    return 0


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
    parser.add_argument(
        "--requests",
        type=int,
        help="of each trace made by rule, for a first look; docs/eviction.md stays as it is then",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
