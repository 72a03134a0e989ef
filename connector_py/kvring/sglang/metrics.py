"""What SGLang's metrics tell of transfers."""

import threading
from typing import Any

from kvring.sglang.pools import Pages

__all__ = ["TransferMetrics"]


class TransferMetrics:
    """Pages and rates of loads and stores, since they were taken last."""

    def __init__(self, *, is_on: bool) -> None:
        """Note nothing where they are off: nobody takes it there."""
        self._is_on = is_on
        self._lock = threading.Lock()
        # Pages, and GiB in a second.
        self._loads: list[tuple[int, float]] = []
        self._stores: list[tuple[int, float]] = []

    def note_loads(self, batches: list[Pages], seconds: float) -> None:
        """Note what was loaded together."""
        self._note(self._loads, batches, seconds)

    def note_stores(self, batches: list[Pages], seconds: float) -> None:
        """Note what was stored together."""
        self._note(self._stores, batches, seconds)

    def take(self) -> Any:
        """Return SGLang's StorageMetrics; None where they are off."""
        if not self._is_on:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        metrics = StorageMetrics()
        with self._lock:
            for pages, rate in self._loads:
                metrics.prefetch_pgs.append(pages)
                metrics.prefetch_bandwidth.append(rate)
            for pages, rate in self._stores:
                metrics.backup_pgs.append(pages)
                metrics.backup_bandwidth.append(rate)
            self._loads.clear()
            self._stores.clear()
        return metrics

    def _note(self, noted: list[tuple[int, float]], batches: list[Pages], seconds: float) -> None:
        if not self._is_on or seconds <= 0:
            return
        pages = sum(len(batch.keys) for batch in batches)
        gibibytes = sum(sum(batch.lengths_bytes) for batch in batches) / (1 << 30)
        with self._lock:
            noted.append((pages, gibibytes / seconds))
