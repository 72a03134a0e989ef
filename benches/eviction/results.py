"""Hit ratios, and who is best by them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PREFIX = "prefix"
CHUNKS = "chunks"
BYTES = "bytes"
METRICS = {
    PREFIX: "chunks up to the first miss",
    CHUNKS: "chunks",
    BYTES: "bytes",
}

FORWARD = "forward"
BACKWARD = "backward"
PLAIN = {"order": FORWARD, "behind_memory": False}
BACKWARDS = {"order": BACKWARD, "behind_memory": False}
BEHIND_MEMORY = {"order": FORWARD, "behind_memory": True}
ONE_SIZE = "one"
EIGHT_SIZES = "eight"

LRU = "lru"
S3FIFO = "s3fifo"


@dataclass(frozen=True)
class Trace:
    """A trace that was played."""

    name: str
    about: str
    requests: int
    lookups: int
    chunks: int
    footprint_blocks: dict[str, int]

    def unbounded(self) -> float:
        """Return the hit ratio of a cache that holds everything."""
        return 1 - self.chunks / self.lookups


@dataclass(frozen=True)
class Setting:
    """A cache before a trace, but for its policy."""

    trace: str
    sizes: str
    fraction: int
    order: str = FORWARD
    behind_memory: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a cache found."""

    ratios: dict[str, float]
    returning: float
    """Share of the stores that were of chunks evicted not long ago."""


@dataclass(frozen=True)
class Rank:
    """How a policy compares with the best one, over many settings."""

    policy: str
    mean: float
    worst: float
    best_in: int


class Results:
    """All outcomes."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.traces = [Trace(**trace) for trace in document["traces"]]
        self.policies = list(dict.fromkeys(cell["policy"] for cell in document["cells"]))
        self.variants = [
            name for name in dict.fromkeys(cell["variant"] for cell in document["cells"]) if name
        ]
        self._outcomes = {
            (_setting(cell), cell["policy"], cell["variant"]): _outcome(cell)
            for cell in document["cells"]
        }

    def settings(self, **chosen: Any) -> list[Setting]:
        """Return the settings of which every policy was tried.

        Args:
            **chosen: Fields of `Setting` that must have these values.
        """
        return [
            setting
            for setting in dict.fromkeys(setting for setting, _, _ in self._outcomes)
            if all(getattr(setting, name) == value for name, value in chosen.items())
        ]

    def outcome(self, setting: Setting, policy: str, variant: str = "") -> Outcome:
        """Return what the policy came to."""
        return self._outcomes[setting, policy, variant]

    def ratio(self, setting: Setting, policy: str, metric: str, variant: str = "") -> float:
        """Return a hit ratio."""
        return self.outcome(setting, policy, variant).ratios[metric]

    def mean_ratio(
        self, settings: Iterable[Setting], policy: str, metric: str, variant: str = ""
    ) -> float:
        """Return the mean of a hit ratio."""
        return statistics.fmean(
            self.ratio(setting, policy, metric, variant) for setting in settings
        )

    def ranking(self, settings: Iterable[Setting], metric: str) -> list[Rank]:
        """Return the policies, best first: by the mean of the ratio to the best hit ratio.

        Args:
            settings: Those in which no policy has a hit are passed over.
            metric: Which hit ratio.
        """
        ranks = [self.rank(settings, metric, policy) for policy in self.policies]
        return sorted(ranks, key=lambda rank: -rank.mean)

    def rank(
        self, settings: Iterable[Setting], metric: str, policy: str, variant: str = ""
    ) -> Rank:
        """Return how a policy, or a variant of it, compares with the best policy."""
        shares = []
        for setting in settings:
            best = max(self.ratio(setting, one, metric) for one in self.policies)
            if best > 0:
                shares.append(self.ratio(setting, policy, metric, variant) / best)
        best_in = sum(share >= 1 for share in shares)
        return Rank(policy, statistics.fmean(shares), min(shares), best_in)


def _setting(cell: dict[str, Any]) -> Setting:
    return Setting(
        cell["trace"], cell["sizes"], cell["fraction"], cell["order"], cell["behind_memory"]
    )


def _outcome(cell: dict[str, Any]) -> Outcome:
    chunks, blocks = cell["chunks"], cell["blocks"]
    ratios = {
        PREFIX: _share(chunks["prefix_hits"], chunks["lookups"]),
        CHUNKS: _share(chunks["hits"], chunks["lookups"]),
        BYTES: _share(blocks["hits"], blocks["lookups"]),
    }
    return Outcome(ratios, _share(cell["returns"], cell["stores"]))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
