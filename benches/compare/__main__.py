"""`python -m benches.compare`: kvring beside LMCache's own L2 adapters and fio."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from benches.compare import document as documents
from benches.compare import sections
from benches.compare.fio import FioError, fio_version, require_fio
from benches.compare.goals import goals
from benches.compare.machine import machine_facts
from benches.compare.markdown import write_markdown
from benches.compare.peers import versions
from benches.compare.plots import write_plots
from benches.compare.samples import Samples
from benches.compare.scale import FULL, QUICK
from benches.compare.session import Session, progress
from benches.compare.tables import goals_table, print_table, section_tables
from benches.compare.workload import TransferError
from tests.support.devices import DeviceError

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
_RESULTS_DIRECTORY = _REPOSITORY / "benches" / "results"
_DOCS_PAGE = _REPOSITORY / "docs" / "benchmarks.md"
# What the page was made of: a part can be measured anew without all others.
_PUBLISHED = _REPOSITORY / "docs" / "benchmarks.json.gz"
_DOCS_IMAGES = _REPOSITORY / "docs" / "images"


def main() -> int:
    """Run what the command line asks for.

    Returns:
        The exit status.
    """
    arguments = _parse_arguments()
    # LMCache would otherwise log every store and count its users.
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    # So that a device is also taken down when the run is ended from outside.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    document = documents.read(arguments.output, _PUBLISHED)
    if arguments.write_docs:
        return _write_docs(document, arguments.output)
    if not arguments.only:
        document = {"sections": {}}
    try:
        failed = _measure(arguments, document)
    except KeyboardInterrupt:
        print("compare: interrupted; whole parts are kept in the JSON", file=sys.stderr)
        return 128 + signal.SIGINT
    if not document.get("sections"):
        print("compare: nothing was measured", file=sys.stderr)
        return 1
    _report(document, arguments.output, arguments.only)
    return 1 if failed else 0


def _measure(arguments: argparse.Namespace, document: documents.Document) -> list[str]:
    """Measure the parts, and write the document after each. Return those that failed."""
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = scale.with_rounds(arguments.rounds)
    with ExitStack() as stack:
        builds = {name: Path(library) for name, library in arguments.build}
        session = Session(
            scale, _RESULTS_DIRECTORY, arguments.huge_pages, arguments.path, builds, stack
        )
        return _measure_parts(arguments, document, session)


def _measure_parts(
    arguments: argparse.Namespace, document: documents.Document, session: Session
) -> list[str]:
    try:
        require_fio()
    except FioError as reason:
        progress(f"skipped: fio: {reason}")
    failed = []
    for name in arguments.only or sections.TITLES:
        progress(f"== {sections.TITLES[name]}")
        context = _context(arguments, session, name)
        started_s = time.monotonic()
        try:
            result = sections.section(name)(session)
        except DeviceError as reason:
            progress(f"skipped: {name}: {reason}")
            continue
        except (TransferError, OSError) as error:
            progress(f"FAILED: {name}: {error}")
            failed.append(name)
            continue
        except (ImportError, PackageNotFoundError) as error:
            progress(f"FAILED: {name}: {error}. Try: make bench-quick, it installs what is needed")
            failed.append(name)
            continue
        context["elapsed_s"] = round(time.monotonic() - started_s)
        documents.merge(document, name, result, context)
        documents.write(document, arguments.output)
    return failed


def _context(arguments: argparse.Namespace, session: Session, name: str) -> dict[str, Any]:
    options = " ".join(
        [
            *(["--quick"] if arguments.quick else []),
            *(["--huge-pages"] if arguments.huge_pages else []),
            *(["--path DIRECTORY"] if arguments.path else []),
            f"--only {name}",
        ]
    )
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "measured_at": now.isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": {**versions(), "fio": fio_version()},
        "settings": {
            "quick": arguments.quick,
            "huge_pages": arguments.huge_pages,
            **asdict(session.scale),
        },
        "commands": {f"part {name}": f"python -m benches.compare {options}"},
    }


def _report(document: documents.Document, output: Path, only: list[str] | None) -> None:
    measured = documents.samples_by_section(document)
    for name in only or measured:
        for table in section_tables(name, measured.get(name, Samples())):
            print_table(table)
        for skipped in document["sections"].get(name, {}).get("skipped", ()):
            print(f"skipped in {name}: {skipped}")
    if not only:
        print_table(goals_table(goals(measured)))
        _plot(document, output)
    print(f"Everything measured: {output}")


def _plot(document: documents.Document, output: Path) -> None:
    try:
        files = write_plots(document, output.parent / "plots")
    except ImportError as error:
        print(f"skipped: plots: {error}", file=sys.stderr)
        return
    print("Plots:", *(path for paths in files.values() for path in paths))


def _write_docs(document: documents.Document, output: Path) -> int:
    if not document.get("sections"):
        print(f"compare: there is nothing in {output}. Measure first: make bench", file=sys.stderr)
        return 1
    if lost := documents.published_without(document, _DOCS_PAGE):
        print(
            f"compare: {_DOCS_PAGE} shows parts that are not in {output} and would be lost: "
            f"{', '.join(lost)}. Measure them: make bench BENCH='--only {' '.join(lost)}', or "
            "remove the page",
            file=sys.stderr,
        )
        return 1
    write_markdown(document, _DOCS_PAGE, _DOCS_IMAGES)
    documents.write(document, _PUBLISHED)
    print(f"Written: {_DOCS_PAGE}")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds and peers")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(sections.TITLES),
        metavar="PART",
        help="measure these parts and put them into the JSON of an earlier run: "
        + ", ".join(sections.TITLES),
    )
    parser.add_argument(
        "--path", type=Path, help="measure in this directory instead of ext4 over a loop device"
    )
    parser.add_argument(
        "--huge-pages", action="store_true", help="ask for huge pages under the memory"
    )
    parser.add_argument(
        "--build",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "LIBRARY"),
        help="another native module of kvring to measure beside the installed one, in the parts "
        "disk, zram, mixed-* and bursts*; may be given again",
    )
    parser.add_argument("--rounds", type=int, help="of each part, instead of its own number")
    parser.add_argument(
        "--output",
        type=Path,
        default=_RESULTS_DIRECTORY / "compare.json",
        help="where to write everything measured (default: benches/results/compare.json)",
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="measure nothing: write docs/benchmarks.md from the JSON",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
