"""What a shared tier tells, in `/status` and to Prometheus."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["TierReport", "collector", "report"]

# By their names in `/status`, and as counters of Prometheus.
_COUNTERS: Final = {
    "lookups": "Keys looked up.",
    "found": "Keys found.",
    "unchecked": "Chunks found without a checksum.",
    "mismatches": "Chunks with a wrong checksum.",
    "loaded_bytes": "Bytes loaded in time.",
    "promoted": "Loaded chunks that were stored locally.",
    "stores": "Chunks stored.",
    "failed_stores": "Chunks that the tier refused.",
    "skipped_stores": "Chunks not offered: the tier was down, or shared_buffer full.",
    "skipped_loads": "Loads not requested: shared_buffer was full.",
    "late": "Lookups and loads past their deadline.",
    "lost": "Connections lost.",
}


class TierReport(Protocol):
    """What tells of a shared tier."""

    name: str
    counts: Counter[str]

    @property
    def is_answering(self) -> bool:
        """Whether it answered the last question in time."""

    @property
    def buffered_bytes(self) -> int:
        """Memory of `shared_buffer` that is in use."""


def report(tier: TierReport) -> dict[str, Any]:
    """Describe a shared tier, for `/status`."""
    return {
        "name": tier.name,
        "is_answering": tier.is_answering,
        "buffered_bytes": tier.buffered_bytes,
        **{name: tier.counts[name] for name in _COUNTERS},
    }


class _Collector:
    """Tells the metrics of every shared tier that was added and is open."""

    def __init__(self) -> None:
        self._tiers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def add(self, store: str, tier: TierReport) -> None:
        """Tell of the shared tier behind a store from now on."""
        self._tiers[store] = tier

    def remove(self, store: str, tier: TierReport) -> None:
        """Tell nothing of it any more. Another one may have its place by now."""
        if self._tiers.get(store) is tier:
            del self._tiers[store]

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names do not depend on it."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics now."""
        told = [(store, report(tier)) for store, tier in list(self._tiers.items())]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"kvring_shared_{name}", text, labels=["store"])
            for store, one in told:
                counter.add_metric([store], one[name])
            yield counter
        answering = GaugeMetricFamily(
            "kvring_shared_answering",
            "1 if the tier answers (is_answering in /status).",
            labels=["store"],
        )
        buffered = GaugeMetricFamily(
            "kvring_shared_buffered_bytes",
            "Memory of shared_buffer in use.",
            labels=["store"],
        )
        for store, one in told:
            answering.add_metric([store], float(one["is_answering"]))
            buffered.add_metric([store], one["buffered_bytes"])
        yield answering
        yield buffered


# The one of this process.
collector: Final = _Collector()
REGISTRY.register(collector)
