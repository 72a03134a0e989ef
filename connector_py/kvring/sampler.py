"""What an owner remembers of its store: a sample every few seconds, taken by a thread it has."""

import os
import socket
import time
import weakref
from contextlib import suppress
from typing import Any, Final

from kvring._native import Connector, KvRingError, __version__
from kvring.frame import frame, largest_namespaces
from kvring.history import History

__all__ = ["INTERVAL_S", "Sampler", "stats_of"]

INTERVAL_S: Final = 5.0
# Thousands of tenants are not counted again before so many times what that took.
_USAGE_REST: Final = 100


class Sampler:
    """Samples a store as often as its `sample_if_due()` is called, and not more often."""

    def __init__(self, store: Connector) -> None:
        """Take the first sample; the store is not kept open."""
        self._store = weakref.ref(store)
        self.history: Final = History(store.stats()["paths"][0]["path"], INTERVAL_S)
        self._before: dict[str, Any] | None = None
        # By a clock that nobody sets.
        self._sampled_s = self._usage_due_s = time.monotonic()
        self._usage: dict[str, Any] = {}
        self._sample(store)

    def wait_s(self) -> float:
        """Return in how many seconds the next sample is due."""
        return max(self._sampled_s + INTERVAL_S - time.monotonic(), 0)

    def sample_if_due(self) -> None:
        """Take a sample if the last one is old enough, and the store is open."""
        if not self.wait_s():
            self._sample(self._store())

    def _sample(self, store: Connector | None) -> None:
        before_s, self._sampled_s = self._sampled_s, time.monotonic()
        if store is None:
            return
        # One that is being closed has nothing to tell.
        with suppress(KvRingError):
            now = _counters_of(store) | {"usage": self._usage_of(store)}
            self.history.add(frame(self._before, now, self._sampled_s - before_s))
            self._before = now

    def _usage_of(self, store: Connector) -> dict[str, Any]:
        begun_s = time.monotonic()
        if begun_s >= self._usage_due_s:
            self._usage = largest_namespaces(store.usage())
            ended_s = time.monotonic()
            self._usage_due_s = ended_s + _USAGE_REST * (ended_s - begun_s)
        return self._usage


def stats_of(store: Connector) -> dict[str, Any]:
    """Return what an owner answers to "stats".

    Raises:
        KvRingError: The store was closed.
    """
    return _counters_of(store) | {"usage": store.usage(), "recovery": store.recovery}


def _counters_of(store: Connector) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "process_id": os.getpid(),
        "version": __version__,
        "time_s": time.time(),
        "stats": store.stats(),
        "latency": [
            {"op": op, "phase": phase, "buckets": buckets, "count": count, "sum_us": sum_us}
            for op, phase, buckets, count, sum_us in store.latency_histograms()
        ],
    }
