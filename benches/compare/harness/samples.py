"""Samples of alternating rounds, and how they are summed up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

RATE = "rate_mb_per_s"
GET_RATE = "get_rate_mb_per_s"
CPU = "cpu_s_per_gb"
KEY_RATE = "keys_per_s"
P50 = "p50_ms"
P90 = "p90_ms"
P99 = "p99_ms"

# What a table has in a column, in this order.
METRICS = {
    RATE: "MB/s",
    GET_RATE: "loads, MB/s",
    CPU: "CPU s/GB",
    KEY_RATE: "keys/s",
    P50: "p50, ms",
    P90: "p90, ms",
    P99: "p99, ms",
    "surviving_rate_mb_per_s": "keys of the surviving path, MB/s",
    "duration_s": "time, s",
    "space_gb": "space on disk, GB",
}
_MORE_IS_BETTER = frozenset({RATE, GET_RATE, KEY_RATE, "surviving_rate_mb_per_s"})

_Peer = TypeVar("_Peer")


@dataclass(frozen=True)
class Sample:
    """The values of one round of one peer."""

    case: str
    peer: str
    round_number: int
    values: dict[str, float]


@dataclass(frozen=True)
class Spread:
    """The median of a few values, and their range."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Sum up values, of which there is at least one."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def __str__(self) -> str:
        """Return the median and, in brackets, the range."""
        if self.minimum == self.maximum:
            return figure(self.median)
        return f"{figure(self.median)} ({figure(self.minimum)}-{figure(self.maximum)})"


def in_turn(peers: Sequence[_Peer], rounds: int, first: int = -1) -> Iterator[tuple[int, _Peer]]:
    """Yield rounds and peers, every other round in the other order; round -1 warms up.

    Who goes first pays for what the round before left behind, and what disturbs one peer has the
    same chance to disturb the others.
    """
    for number in range(first, rounds):
        for peer in peers if number % 2 == 0 else peers[::-1]:
            yield number, peer


def series(samples: Sequence[Sample], case: str, peer: str, metric: str) -> dict[int, float]:
    """Return a peer's values of one metric by round."""
    return {
        one.round_number: one.values[metric]
        for one in samples
        if (one.case, one.peer) == (case, peer) and metric in one.values
    }


def ratio(
    samples: Sequence[Sample], case: str, peer: str, references: Sequence[str], metric: str
) -> Spread | None:
    """Divide a peer's values by those of the reference that was best in the round.

    The halves of a round ran under the same conditions: that is steadier than the ratio of two
    medians. A reference with a single round is compared with every round.
    """
    ours = series(samples, case, peer, metric)
    others = [series(samples, case, name, metric) for name in references if name != peer]
    best = max if metric in _MORE_IS_BETTER else min
    ratios = []
    for number, value in ours.items():
        theirs = [
            one[number] if number in one else next(iter(one.values()))
            for one in others
            if number in one or len(one) == 1
        ]
        if theirs and best(theirs) > 0:
            ratios.append(value / best(theirs))
    return Spread.of(ratios) if ratios else None


def figure(value: float) -> str:
    """Write a number with three significant digits."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(2 - magnitude, 0), 4)}f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values, of which there is at least one."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


def size_text(size_bytes: int) -> str:
    """Write a size as 64 KiB or 4 MiB."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale} {unit}"
    return f"{size_bytes} B"
