"""`python -m benches.mixed_load`: the same load on several builds in turns, and its figures."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benches.compare.samples import percentile

LOAD = Path(__file__).with_name("load.py")


class Build:
    """A store of one build, and all that was measured of it."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        """Wait until the store is open."""
        self.name, self._process = name, process
        self._latencies_us: list[int] = []
        self._longest_us: dict[str, int] = {}
        self._stored_bytes = self._seconds = self._hits = self._asked = 0.0
        print(f"{name}: {self._answer()['kvring']}", file=sys.stderr)

    def run(self, seconds: float, *, counts: bool = True) -> None:
        """Let it work, and the others rest."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        done = self._answer()
        if not counts:
            return
        self._latencies_us += done["latencies_us"]
        for name, longest_us in done["longest_submit_us"].items():
            self._longest_us[name] = max(self._longest_us.get(name, 0), longest_us)
        self._stored_bytes += done["stored_bytes"]
        self._seconds += done["seconds"]
        self._hits += done["hits"]
        self._asked += done["asked"]

    def result(self) -> dict[str, Any]:
        """Return what was measured."""
        latencies_ms = [latency_us / 1000 for latency_us in self._latencies_us]
        return {
            "build": self.name,
            "seconds": round(self._seconds, 1),
            "get_batches": len(latencies_ms),
            "get_p50_ms": round(percentile(latencies_ms, 50), 2),
            "get_p99_ms": round(percentile(latencies_ms, 99), 2),
            "get_max_ms": round(max(latencies_ms), 2),
            "hit_share": round(self._hits / self._asked, 4),
            "set_mb_per_s": round(self._stored_bytes / self._seconds / 1e6, 1),
            "longest_submit_ms": {name: us / 1000 for name, us in sorted(self._longest_us.items())},
        }

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended: exit status {self._process.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]


@contextmanager
def opened(name: str, python: str, parent: Path) -> Iterator[Build]:
    """Open a new store with the kvring that an interpreter has; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvring-mixed-load-", dir=parent) as directory:
        process = subprocess.Popen(
            [python, str(LOAD), directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Build(name, process)
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Measure and print a line of JSON for each build."""
    parser = argparse.ArgumentParser(prog="python -m benches.mixed_load", description=__doc__)
    parser.add_argument(
        "--build",
        action="append",
        required=True,
        metavar="NAME=PYTHON",
        help="a name, and an interpreter that has this build of kvring; once for each build",
    )
    parser.add_argument(
        "--directory", type=Path, required=True, help="where the stores are made, 2 GiB each"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="for each build (default: 20)")
    parser.add_argument("--turn-s", type=float, default=20.0, help="one turn (default: 20)")
    parser.add_argument(
        "--warm-up-s", type=float, default=10.0, help="before anything counts (default: 10)"
    )
    arguments = parser.parse_args()
    builds = [entry.partition("=")[::2] for entry in arguments.build]
    turns = max(1, round(arguments.minutes * 60 / arguments.turn_s))

    with ExitStack() as stack:
        running = [
            stack.enter_context(opened(name, python, arguments.directory))
            for name, python in builds
        ]
        for build in running:
            build.run(arguments.warm_up_s, counts=False)
        for turn in range(turns):
            # There and back again: none is always the one after the other.
            for build in running if turn % 2 == 0 else running[::-1]:
                build.run(arguments.turn_s)
        results = [build.result() for build in running]
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
