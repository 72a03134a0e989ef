"""`python -m benches.compare`: put and get of kvring beside LMCache's fs_native."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from benches.compare import report
from benches.compare.arena import Arena
from benches.compare.devices import Device, DeviceError, directory_device, loop_device
from benches.compare.machine import machine_facts
from benches.compare.peers import (
    FS_NATIVE_WORKERS,
    KVRING_CAPACITY,
    OPENERS,
    peer_version,
)
from benches.compare.rounds import run_rounds
from benches.compare.workload import BATCHES_IN_FLIGHT, Plan, TransferError

_KIB = 1024
_MIB = 1024 * _KIB
_RESULTS_DIRECTORY = Path(__file__).resolve().parent.parent / "results"

_FULL_PLANS = [
    Plan(chunk_size_bytes=64 * _KIB, chunk_count=4096, batch_keys=32),
    Plan(chunk_size_bytes=_MIB, chunk_count=1024, batch_keys=16),
]
_QUICK_PLANS = [
    Plan(chunk_size_bytes=64 * _KIB, chunk_count=1024, batch_keys=32),
    Plan(chunk_size_bytes=_MIB, chunk_count=256, batch_keys=16),
]
_FULL_ROUNDS = 5
_QUICK_ROUNDS = 3


def main() -> int:
    """Run the comparison that the command line asks for.

    Returns:
        The exit status.
    """
    arguments = _parse_arguments()
    # So that a device is also taken down when the run is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _compare(arguments)
    except (DeviceError, TransferError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    except (ImportError, PackageNotFoundError) as error:
        print(f"compare: {error}. Try: make build lmcache", file=sys.stderr)
        return 1
    return 0


def _compare(arguments: argparse.Namespace) -> None:
    peers: list[str] = arguments.peers
    plans = _QUICK_PLANS if arguments.quick else _FULL_PLANS
    round_count = _QUICK_ROUNDS if arguments.quick else _FULL_ROUNDS
    context: dict[str, object] = {
        "machine": machine_facts(),
        "versions": {peer: peer_version(peer) for peer in peers},
        "settings": {
            "quick": arguments.quick,
            "rounds": round_count,
            "batches_in_flight": BATCHES_IN_FLIGHT,
            "huge_pages": arguments.huge_pages,
            "fs_native_workers": FS_NATIVE_WORKERS,
            "kvring_capacity": KVRING_CAPACITY,
            "plans": [vars(plan) for plan in plans],
        },
    }
    arena = Arena(max(plan.size_bytes for plan in plans), huge_pages=arguments.huge_pages)
    with _open_device(arguments) as device:
        context["device"] = {"name": device.name, **device.facts}
        outcome = run_rounds(device.directory, peers, plans, round_count, arena, _print_progress)
    context["peers"] = outcome.facts
    rows = report.summarize(outcome.samples)
    title = f"{' and '.join(peers)} on {device.name} ({device.facts['file_system']})"
    report.print_table(title, rows, peers)
    report.write_json(arguments.output, context, rows, outcome.samples)
    print(f"Everything measured: {arguments.output}")


def _open_device(arguments: argparse.Namespace) -> AbstractContextManager[Device]:
    if arguments.path is not None:
        return directory_device(str(arguments.path), arguments.path)
    _RESULTS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    if arguments.device == "ext4-loop":
        return loop_device(_RESULTS_DIRECTORY, "ext4")
    return directory_device("disk", _RESULTS_DIRECTORY)


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        choices=["disk", "ext4-loop"],
        default="disk",
        help="disk: this source tree's file system; ext4-loop: a fresh ext4 over it, as root",
    )
    where.add_argument("--path", type=Path, help="measure in this directory instead")
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument(
        "--huge-pages", action="store_true", help="ask for huge pages under the memory"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=list(OPENERS), default=list(OPENERS), help="whom to measure"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=_RESULTS_DIRECTORY / "compare.json",
        help="where to write everything measured (default: benches/results/compare.json)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
