"""`python -m benches.guard`: is this tree slower than the one it comes from?

Both are built for release, side by side below target/guard, and measured in alternating rounds,
each with a new store. A part that got worse by more than the limit, and by more than the noise of
the run, fails.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Client
from benches.compare.harness.peers import Peer, Place, build_peer
from benches.compare.harness.samples import CPU, KEY_RATE, METRICS, RATE, figure, in_turn
from benches.compare.harness.scale import KIB, MIB, Plan
from benches.compare.harness.workload import (
    Submit,
    TransferError,
    chunk_names,
    repeated,
    timed,
    timed_delete,
    timed_get,
    timed_set,
)
from benches.tables import make_table, print_table

_REPOSITORY = Path(__file__).resolve().parents[1]
_OUTPUT = _REPOSITORY / "target" / "guard"
_PLANS = (Plan(4 * KIB, 8192, 64), Plan(64 * KIB, 2048, 32), Plan(MIB, 256, 8))
# So often in a round a plan is stored and loaded: less is too short to be timed.
_TIMES = 3
_LOOKUPS = 256
_LOOKUPS_S = 1.0
_CAPACITY_BYTES = 2 << 30
# Of a box plot, by the interquartile range and the root of the count.
_NOTCH = 1.57

# Values by part and metric.
Round = dict[str, float]


@dataclass(frozen=True)
class Verdict:
    """What became of one metric of one part, between base and tree.

    Attributes:
        part: The part and the metric.
        base: Median of the base.
        tree: Median of the tree.
        worse: By which share of the base the tree is worse: the median over the rounds, of which
            each measures both builds. Negative if it is better.
        noise: How far that median may be off: half the notch of a box plot (McGill, Tukey and
            Larsen, 1978), 1.57 times the interquartile range by the root of the count of rounds.
    """

    part: str
    base: float
    tree: float
    worse: float
    noise: float

    def fails(self, limit: float) -> bool:
        """Whether it is worse by more than the limit, and by more than the noise."""
        return self.worse > max(limit, self.noise)

    def row(self, limit: float) -> list[str]:
        """Return it as a row of the table."""
        part, _, metric = self.part.rpartition(", ")
        text = "worse" if self.fails(limit) else "too noisy" if self.noise > limit else ""
        values = [figure(self.base), figure(self.tree), f"{self.worse:+.1%}", f"±{self.noise:.1%}"]
        return [part, METRICS[metric], *values, text]


def judge(part: str, base: Sequence[float], tree: Sequence[float]) -> Verdict:
    """Compare the rounds of both builds. Of processor time less is better, of all else more."""
    sign = 1 if part.endswith(CPU) else -1
    changes = [sign * (of_tree / of_base - 1) for of_base, of_tree in zip(base, tree, strict=True)]
    low, worse, high = statistics.quantiles(changes, n=4, method="inclusive")
    noise = _NOTCH * (high - low) / math.sqrt(len(changes))
    return Verdict(part, statistics.median(base), statistics.median(tree), worse, noise)


def measure(peer: Peer, arena: Arena, path: Path | None) -> Round:
    """Measure one round of a build, in a new store."""
    values: Round = {}
    with tempfile.TemporaryDirectory(prefix="kvring-guard-", dir=path) as directory:
        client = peer.open(Place(Path(directory), None, arena, MIB, _CAPACITY_BYTES))
        try:
            for plan in _PLANS:
                values |= _transfers(client, arena, plan)
            values |= _lookups(client, arena)
        finally:
            client.close()
    return values


def _transfers(client: Client, arena: Arena, plan: Plan) -> Round:
    size, count = plan.chunk_size_bytes, plan.chunk_count
    stored, loaded = arena.to_store(size, count), arena.to_load(size, count)
    timings = defaultdict(list)
    for time in range(_TIMES):
        keys = chunk_names(f"{size}:{time}", count)
        timings["store"].append(timed_set(client, keys, stored, plan.batch_keys))
        timings["load"].append(timed_get(client, keys, loaded, plan.batch_keys))
        if different := arena.differing_chunks(size, count):
            raise TransferError(f"{len(different)} chunks came back wrong")
        arena.clear_loaded(plan.size_bytes)
        timed_delete(client, keys, _LOOKUPS)
    values = {}
    for operation, several in timings.items():
        moved_bytes = plan.size_bytes * len(several)
        name = f"{operation} {size // KIB} KiB, "
        values[name + RATE] = moved_bytes / 1e6 / sum(one.elapsed_s for one in several)
        values[name + CPU] = sum(one.cpu_s for one in several) / (moved_bytes / 1e9)
    return values


def _lookups(client: Client, arena: Arena) -> Round:
    plan = _PLANS[0]
    keys = chunk_names("held", plan.chunk_count)
    timed_set(client, keys, arena.to_store(plan.chunk_size_bytes, len(keys)), plan.batch_keys)
    batches = [keys[at : at + _LOOKUPS] for at in range(0, len(keys), _LOOKUPS)]
    submits: list[Submit] = [partial(client.submit_exists, batch) for batch in batches]
    timing = timed(client, repeated(submits, _LOOKUPS_S))
    answers = sum(len(results) for results in timing.results if results is not None)
    return {f"exists, {KEY_RATE}": answers / timing.elapsed_s}


def _git(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=_REPOSITORY, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _merge_base() -> str:
    """Return where this tree left the main line; else the commit before."""
    head = _git("rev-parse", "HEAD")
    try:
        base = _git("merge-base", "HEAD", "origin/main")
    except subprocess.CalledProcessError:
        base = head
    return base if base != head else _git("rev-parse", "HEAD~1")


def _checked_out(revision: str) -> Path:
    directory = _OUTPUT / "base-source"
    try:
        _git("rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError:
        raise SystemExit(
            f"guard: --base {revision}: git knows no such commit; name a branch, a tag or a hash"
        ) from None
    if not (directory / ".git").exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--force", "--detach", directory, revision)
    _git("-C", directory, "checkout", "--quiet", "--force", "--detach", revision)
    return directory


def _built(source: Path, name: str) -> Peer:
    """Build the native module of the checkout at `source`."""
    target = _OUTPUT / f"{name}-target"
    print(f"guard: building {name}", flush=True)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "PYO3_PYTHON": sys.executable}
    build = ["cargo", "build", "--release", "--quiet", "--package", "kvring-python"]
    subprocess.run(build, cwd=source, check=True, env=environment)
    return build_peer(name, target / "release" / "lib_native.so")


def main() -> int:
    """Build, measure and judge. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.guard", description=__doc__)
    parser.add_argument("--base", help="the revision to compare with (default: the merge base)")
    parser.add_argument(
        "--path", type=Path, help="directory of the stores (default: of temporary files)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="of each build (default: 15)")
    parser.add_argument("--limit-percent", type=float, default=5, help="(default: 5)")
    arguments = parser.parse_args()
    revision, limit = arguments.base or _merge_base(), arguments.limit_percent / 100
    base, tree = builds = (
        _built(_checked_out(revision), "base"),
        _built(_REPOSITORY, "tree"),
    )
    arena = Arena(max(plan.size_bytes for plan in _PLANS), huge_pages=False)
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    # What looks worse is measured once more: of many parts one does by chance.
    for first in (-1, 0):
        for number, peer in in_turn(builds, arguments.rounds, first):
            print(f"guard: round {number + 1} of {arguments.rounds}: {peer.name}", flush=True)
            for part, value in measure(peer, arena, arguments.path).items():
                if number >= 0:
                    values[part, peer.name].append(value)
        verdicts = [
            judge(part, values[part, base.name], values[part, tree.name])
            for part in dict.fromkeys(part for part, _ in values)
        ]
        worse = [one.part for one in verdicts if one.fails(limit)]
        if not worse:
            break
    header = ("part", "unit", "base", "tree", "worse by", "noise", "")
    print_table(make_table("Base and tree", header, [one.row(limit) for one in verdicts]))
    print(f"guard: {len(worse)} of {len(verdicts)} worse than {revision[:12]}", *worse, sep="\n  ")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
