"""`python -m benches.contention`: a mixed load by 1, 4 and 16 threads, under perf.

It builds kvring with its symbols, aside of the one that is installed, lets `kvring bench` load and
store at random over one store, and says where the CPU time went. Lines of locks are marked: our
own must not be among the first ten.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.built_package import place_package

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
FIRST_LINES = 10
# What std's locks, and the system call below them, are called in a profile of user code.
_LOCK = re.compile(
    r"(?:sync::(?:poison::)?(?:mutex|rwlock|condvar)|sys::sync|lock_contended|futex)"
)
_LINE = re.compile(r"\s*([0-9.]+)%\s+(\S+)\s+\[([.k])\]\s+(.+?)\s*$")


@dataclass(frozen=True)
class Line:
    """A function, and its share of the samples."""

    percent: float
    module: str
    in_kernel: bool
    symbol: str

    @property
    def is_lock(self) -> bool:
        """Tell whether this is the work of a lock, or of waiting for one."""
        return _LOCK.search(self.symbol) is not None


def parse_report(text: str) -> list[Line]:
    """Read what `perf report --stdio` has printed."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return [
        Line(float(match[1]), match[2], match[3] == "k", match[4]) for match in matches if match
    ]


def _build(site: Path) -> None:
    """Put a kvring with symbols below a directory."""
    command = ("cargo", "build", "--release", "--locked", "--package", "kvring-python")
    subprocess.run(command, cwd=_REPOSITORY, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", _REPOSITORY / "target"))
    place_package(_REPOSITORY, target / "release" / "lib_native.so", site)


def _bench_command(arguments: argparse.Namespace, threads: int, output: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "kvring", "bench", "--path", str(arguments.path)),
        *("--rw", arguments.rw, "--bs", arguments.bs, "--size", arguments.size),
        *("--numjobs", str(threads), "--iodepth", str(max(arguments.keys_in_flight // threads, 8))),
        *("--runtime", str(arguments.seconds)),
        *("--json", "--output", str(output)),
    ]


def profile(arguments: argparse.Namespace, threads: int, modules: Path) -> dict[str, Any]:
    """Run the load with so many threads, and return its document and the first lines."""
    with tempfile.TemporaryDirectory(prefix="kvring-contention-") as directory:
        data, output = Path(directory, "perf.data"), Path(directory, "bench.json")
        environment = os.environ | {"PYTHONPATH": str(modules)}
        # By the clock of the processor, and so also in virtual machines without counters.
        record = ("perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-o", str(data), "--")
        command = (*record, *_bench_command(arguments, threads, output))
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        report = subprocess.run(
            (
                "perf",
                "report",
                "--stdio",
                "-i",
                str(data),
                "--sort",
                "dso,sym",
                "--percent-limit=0",
            ),
            capture_output=True,
            text=True,
            check=True,
        )
        lines = parse_report(report.stdout)
        if not lines:
            raise SystemExit(f"contention: perf has sampled nothing: {report.stderr.strip()}")
        return {"bench": json.loads(output.read_text(encoding="utf-8")), "lines": lines}


def _print(threads: int, lines: list[Line]) -> bool:
    """Print the first lines, and return whether a lock is among them."""
    print(f"\n{threads} submitting threads")
    for line in lines[:FIRST_LINES]:
        mark = "LOCK " if line.is_lock else ""
        print(f"{line.percent:6.2f} %  {line.module:<24} {mark}{line.symbol}")
    share = sum(line.percent for line in lines if line.is_lock)
    print(f"{share:6.2f} %  all functions of locks together")
    return any(line.is_lock for line in lines[:FIRST_LINES])


def main() -> int:
    """Measure. Returns 1 where a lock is among the first lines."""
    parser = argparse.ArgumentParser(prog="python -m benches.contention", description=__doc__)
    parser.add_argument("--path", type=Path, required=True, help="where the store is made")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rw", default="randrw", help="as of kvring bench (default: randrw)")
    parser.add_argument("--bs", default="4k", help="small: most submits (default: 4k)")
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keys-in-flight", type=int, default=512, help="of all threads together")
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        raise SystemExit("contention: no perf. On Debian: apt-get install linux-perf")
    with tempfile.TemporaryDirectory(prefix="kvring-symbols-") as directory:
        site = Path(directory) / "site"
        _build(site)
        found = [
            _print(threads, profile(arguments, threads, site)["lines"])
            for threads in arguments.threads
        ]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
