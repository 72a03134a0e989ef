"""What vLLM's metrics tell of a kvring tier."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    ConfigInfo,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

from kvring.engine_store import EngineStore

__all__ = ["KvringTierInfo", "TierMetrics", "metric_definitions"]

# vLLM asks in every step.
_PAUSE_S: Final = 1.0

_LABELS: Final = ("path",)

# Name, meaning, and which number of stats() it is, or promoted.
_GAUGES: Final = (
    ("vllm:kvring_chunks", "Chunks stored in the kvring tier.", "keys"),
    ("vllm:kvring_used_bytes", "Capacity of the kvring tier in use.", "used_bytes"),
    ("vllm:kvring_capacity_bytes", "Capacity of the kvring tier.", "capacity_bytes"),
)
_COUNTERS: Final = (
    ("vllm:kvring_evicted_chunks", "Chunks that the kvring tier evicted.", "evicted"),
    ("vllm:kvring_expired_chunks", "Chunks that expired in the kvring tier.", "expired"),
    ("vllm:kvring_read_errors", "Loads that failed in the drive.", "read_errors"),
    ("vllm:kvring_write_errors", "Stores that failed in the drive.", "write_errors"),
    ("vllm:kvring_checksum_mismatches", "Damaged chunks, answered as misses.", "checksum_mismatch"),
    (
        "vllm:kvring_refused_stores",
        "Chunks refused, as set_queue_bytes was used up.",
        "set_rejected_queue_full",
    ),
    (
        "vllm:kvring_promoted_chunks",
        "Chunks of another tier that the kvring tier stored, with promote.",
        "promoted",
    ),
)
_HEALTHY: Final = (
    "vllm:kvring_healthy",
    "1 if nothing fails at any path now.",
)


@dataclass(frozen=True)
class KvringTierInfo(ConfigInfo):
    """What stays as it is while a tier runs."""

    kvring_path: str
    kvring_capacity_bytes: int
    kvring_engine: str
    kvring_namespace: str
    kvring_version: str


class TierMetrics:
    """Gauges and counters of a store, as vLLM collects them."""

    def __init__(self, store: EngineStore, promoted: Callable[[], int]) -> None:
        """Count from now on.

        Args:
            store: Whose metrics.
            promoted: How many chunks were promoted so far.
        """
        self._store = store
        self._promoted = promoted
        self._labels = (store.path,)
        self._counted = dict.fromkeys((source for *_, source in _COUNTERS), 0)
        self._next_s = 0.0

    def take(self) -> OffloadingConnectorStats | None:
        """Return gauges, and what was counted since the last time; None within a second of that."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _PAUSE_S
        stats = {**self._store.connector.stats(), "promoted": self._promoted()}
        told = OffloadingConnectorStats()
        for name, _, source in _GAUGES:
            told.set_gauge(name, stats[source], self._labels)
        is_healthy = not any(path["trouble"] for path in stats["paths"])
        told.set_gauge(_HEALTHY[0], int(is_healthy), self._labels)
        for name, _, source in _COUNTERS:
            told.increase_counter(name, stats[source] - self._counted[source], self._labels)
            self._counted[source] = stats[source]
        return told


def metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Describe all metrics."""
    gauges = [*((name, meaning) for name, meaning, _ in _GAUGES), _HEALTHY]
    return {
        **{name: OffloadingGaugeMetadata(meaning, _LABELS) for name, meaning in gauges},
        **{name: OffloadingCounterMetadata(meaning, _LABELS) for name, meaning, _ in _COUNTERS},
    }
