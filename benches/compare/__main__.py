"""`python -m benches.compare`: kvring beside LMCache's own L2 adapters and fio."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from benches.compare import report
from benches.compare.harness.fio import fio_version
from benches.compare.harness.peers import build_peer, kvring_peer, versions
from benches.compare.harness.scale import BATCHES_IN_FLIGHT, FULL, QUICK
from benches.compare.harness.session import Session, progress
from benches.compare.harness.workload import TransferError
from benches.compare.parts import TITLES, part
from benches.results import HELP, Section, drive_of, write_results
from tests.support.devices import DeviceError
from tests.support.lmcache_command import DeploymentError

_RESULTS_DIRECTORY = Path(__file__).resolve().parents[2] / "target" / "bench"


def main() -> int:
    """Measure what the command line asks for. Returns the exit status."""
    arguments = _parse_arguments()
    # LMCache would otherwise log every store and count its users.
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    # So that a device is also taken down when the run is ended from outside.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    try:
        failed = _measure(arguments)
    except KeyboardInterrupt:
        print("compare: interrupted; the parts before are written", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"Results: {arguments.output}")
    return 1 if failed else 0


def _measure(arguments: argparse.Namespace) -> list[str]:
    """Measure the parts, and return those that failed."""
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = scale.with_rounds(arguments.rounds)
    more = [build_peer(name, Path(library)) for name, library in arguments.build]
    more += [kvring_peer(f"kvring, {name}", **json.loads(text)) for name, text in arguments.also]
    failed = []
    sections: list[Section] = []
    arguments.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        session = Session(
            scale, arguments.output, arguments.huge_pages, arguments.path, more, stack
        )
        for name in arguments.only or TITLES:
            progress(f"== {TITLES[name]}")
            try:
                result = part(name)(session)
            except DeviceError as reason:
                progress(f"skipped: {name}: {reason}")
                continue
            except (DeploymentError, TransferError, OSError) as error:
                progress(f"FAILED: {name}: {error}")
                failed.append(name)
                continue
            except (ImportError, PackageNotFoundError) as error:
                progress(f"FAILED: {name}: {error}. make bench-quick installs what is needed")
                failed.append(name)
                continue
            section = report.write(name, TITLES[name], result, session, arguments.reference)
            sections.append(section)
            if arguments.results:
                _write_results(arguments, sections)
    return failed


def _write_results(arguments: argparse.Namespace, sections: list[Section]) -> None:
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    conditions = [
        f"Drive: {drive_of(arguments.path or arguments.output)}.",
        f"{used}, fio: {fio_version()}.",
        f"{BATCHES_IN_FLIGHT} batches in flight, O_DIRECT, "
        + ("quick scale." if arguments.quick else "full scale."),
        "MB = 10^6 bytes, GB = 10^9 bytes. CPU s/GB: user and system time of the process.",
    ]
    title = "kvring beside LMCache's L2 adapters"
    write_results(arguments.results, title, "make bench", conditions, sections)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="less data, fewer rounds and peers")
    names = ", ".join(TITLES)
    add("--only", nargs="+", choices=list(TITLES), metavar="PART", help=f"these parts: {names}")
    add("--rounds", type=int, help="of each part, instead of its own number")
    add("--path", type=Path, help="measure in this directory instead of ext4 over a loop device")
    add("--huge-pages", action="store_true", help="ask for huge pages under the memory")
    where = "in the parts disk, zram, mixed-*, bursts*; may be given again"
    add(
        "--build",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "LIBRARY"),
        help=f"another native module of kvring to measure beside the installed one, {where}",
    )
    add(
        "--also",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "OPTIONS"),
        help=f"kvring with other options too, as '{{\"io_threads\": 4}}', {where}",
    )
    add("--reference", metavar="PEER", help="divide by this peer instead of the best fs_native")
    add(
        "--output",
        type=Path,
        default=_RESULTS_DIRECTORY,
        help="directory of the results (default: target/bench)",
    )
    add("--results", type=Path, metavar="FILE", help=HELP)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
