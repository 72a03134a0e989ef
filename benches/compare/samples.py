"""What was measured, and how it is summed up. Pure: nothing here touches a device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RATE = "rate_mb_per_s"
CPU = "cpu_s_per_gb"
KEY_RATE = "keys_per_s"


@dataclass(frozen=True)
class Sample:
    """What one round of one peer came to."""

    operation: str
    case: str
    chunk_size_bytes: int
    peer: str
    round_number: int
    values: dict[str, float]


@dataclass(frozen=True)
class Spread:
    """The middle of a few values, and how far they reach."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Sum up values, of which there is at least one."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def text(self, decimals: int | None = None) -> str:
        """Return the median and, in brackets, the range."""
        middle, low, high = (
            figure(value, decimals) for value in (self.median, self.minimum, self.maximum)
        )
        return f"{middle} ({low}-{high})"


def figure(value: float, decimals: int | None = None) -> str:
    """Write a number with three significant digits, or with as many decimals as asked."""
    if decimals is None:
        magnitude = math.floor(math.log10(abs(value))) if value else 0
        decimals = min(max(2 - magnitude, 0), 4)
    return f"{value:,.{decimals}f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values, of which there is at least one."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


@dataclass(frozen=True)
class Cell:
    """Whom and what a series of samples belongs to, all but the peer."""

    operation: str
    chunk_size_bytes: int = 0
    case: str = ""


class Samples:
    """All samples of one section."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._samples = list(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Take one more."""
        self._samples.append(sample)

    def cells(self, operation: str | None = None) -> list[Cell]:
        """Return what was measured, in the order in which it was."""
        return list(
            dict.fromkeys(
                Cell(one.operation, one.chunk_size_bytes, one.case)
                for one in self._samples
                if operation in (None, one.operation)
            )
        )

    def peers(self) -> list[str]:
        """Return who was measured, in the order in which they were first."""
        first_round = sorted(self._samples, key=lambda one: one.round_number)
        return list(dict.fromkeys(one.peer for one in first_round))

    def has(self, cell: Cell, metric: str) -> bool:
        """Tell whether any peer has values of a metric."""
        return any(self.series(cell, peer, metric) for peer in self.peers())

    def series(self, cell: Cell, peer: str, metric: str) -> dict[int, float]:
        """Return a peer's values of one metric by round."""
        return {
            one.round_number: one.values[metric]
            for one in self._samples
            if one.peer == peer
            and Cell(one.operation, one.chunk_size_bytes, one.case) == cell
            and metric in one.values
        }

    def spread(self, cell: Cell, peer: str, metric: str) -> Spread | None:
        """Sum up one series; None where there is none."""
        series = self.series(cell, peer, metric)
        return Spread.of(series.values()) if series else None

    def best(
        self, cell: Cell, peers: Iterable[str], metric: str, *, most: bool = True
    ) -> str | None:
        """Return the peer with the greatest (or the least) median, among those measured."""
        medians = {
            peer: spread.median
            for peer in peers
            if (spread := self.spread(cell, peer, metric)) is not None
        }
        if not medians:
            return None
        return (max if most else min)(medians, key=lambda peer: medians[peer])

    def ratio(self, cell: Cell, ours: str, theirs: str, metric: str) -> Spread | None:
        """Sum up ours / theirs, round by round; None where one of them is missing.

        The halves of a round ran under the same conditions: that is steadier than the ratio of
        two medians.
        """
        return ratio_of(self.series(cell, ours, metric), self.series(cell, theirs, metric))

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain data."""
        return [asdict(one) for one in self._samples]

    @classmethod
    def from_json(cls, plain: Iterable[dict[str, Any]]) -> Samples:
        """Read what `to_json` returned."""
        return cls(Sample(**one) for one in plain)


def ratio_of(ours: dict[int, float], theirs: dict[int, float]) -> Spread | None:
    """Divide two series round by round. A series of a single round is compared with every round."""
    if not ours or not theirs:
        return None
    if len(theirs) == 1:
        theirs = dict.fromkeys(ours, next(iter(theirs.values())))
    rounds = [number for number in ours if theirs.get(number, 0.0) > 0]
    return Spread.of(ours[number] / theirs[number] for number in rounds) if rounds else None


def size_text(size_bytes: int) -> str:
    """Write a size as 64 KiB or 4 MiB."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale} {unit}"
    return f"{size_bytes} B"
