"""Metrics of the stores that this process has open, for Prometheus.

Where prometheus_client is installed, opening a store registers them with its default registry,
which LMCache's `/metrics` prints.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from prometheus_client.core import (
    REGISTRY,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from kvring._native import Connector, KvRingError, __version__

__all__ = ["SOURCES", "StoreCollector", "collector"]

# Each namespace is a series: a store may have many tenants.
_MOST_NAMESPACES: Final = 50
_OTHERS: Final = "(others)"

# Name, help, label, and which counter of stats() has which value of the label.
_LABELLED: Final = (
    (
        "kvring_lookups",
        "Keys looked up.",
        "result",
        {"hit": "exists_hits", "miss": "exists_misses"},
    ),
    (
        "kvring_loads",
        "Keys to load.",
        "result",
        {"hit": "get_hits", "miss": "get_misses"},
    ),
    (
        "kvring_load_failures",
        "Misses of stored keys.",
        "reason",
        {"late": "get_late", "read_error": "read_errors", "checksum": "checksum_mismatch"},
    ),
    (
        "kvring_stores",
        "Keys to store.",
        "result",
        {
            "stored": "set_stored",
            "unchanged": "set_unchanged",
            "deleted": "set_deleted",
            "not_admitted": "set_not_admitted",
            "over_write_budget": "set_over_write_budget",
            "failed": "set_failed",
        },
    ),
    (
        "kvring_store_failures",
        "Keys that were not stored, by the code of the failure.",
        "reason",
        {
            "queue_full": "set_rejected_queue_full",
            "no_space": "set_no_space",
            "quota_full": "set_quota_full",
            "too_long": "set_too_long",
            "collision": "set_collision",
            "unavailable": "set_unavailable",
            "io": "set_io_error",
            "closed": "set_closed",
            "abandoned": "set_abandoned",
        },
    ),
    (
        "kvring_deletes",
        "Keys to delete.",
        "result",
        {"deleted": "deleted", "absent": "delete_absent"},
    ),
    (
        "kvring_removed_chunks",
        "Chunks removed otherwise than by DELETE.",
        "reason",
        {"evicted": "evicted", "expired": "expired", "purged": "purged"},
    ),
    (
        "kvring_removed_bytes",
        "Bytes of chunks removed otherwise than by DELETE.",
        "reason",
        {"evicted": "evicted_bytes", "expired": "expired_bytes"},
    ),
    (
        "kvring_transferred_bytes",
        "Payload moved between memory and the drive.",
        "op",
        {"read": "read_bytes", "write": "written_bytes"},
    ),
    (
        "kvring_unwritten_bytes",
        "Payload that was not written, to spare the drive.",
        "reason",
        {"not_admitted": "not_admitted_bytes", "over_write_budget": "over_write_budget_bytes"},
    ),
    (
        "kvring_device_errors",
        "Operations that failed in the drive.",
        "op",
        {"read": "read_errors", "write": "write_errors", "sync": "sync_errors"},
    ),
    (
        "kvring_missed_hits",
        "Misses that a larger capacity would hit.",
        "capacity",
        {"1.5x": "would_hit_at_1_5x", "2x": "would_hit_at_2x"},
    ),
)

_COUNTERS: Final = (
    ("kvring_bounced_bytes", "Payload copied through bounce buffers.", "bounced_bytes"),
    ("kvring_transfers", "Transfers sent to the drive.", "transfers"),
    ("kvring_slow_transfers", "Transfers of more than 1 s.", "transfers_slow"),
    ("kvring_leases_refused", "Leases refused to lookups.", "leases_refused"),
    (
        "kvring_other_variant",
        "Misses of chunks stored with another dtype, shape, weights or epoch.",
        "other_variant",
    ),
    (
        "kvring_returned_keys",
        "Stores of remembered keys, which were evicted or not admitted.",
        "returned_keys",
    ),
    ("kvring_abandoned_operations", "Operations dropped by close().", "abandoned"),
)

_GAUGES: Final = (
    ("kvring_in_flight_operations", "Unanswered operations.", "in_flight"),
    ("kvring_store_queue_bytes", "Bytes of unanswered stores.", "set_queued_bytes"),
    ("kvring_store_queue_operations", "Unanswered stores.", "set_queued_operations"),
    ("kvring_registered_bytes", "Registered memory.", "registered_bytes"),
    (
        "kvring_eviction_bonus",
        "Worth of an unused chunk to adaptive eviction, in doublings of uses.",
        "eviction_bonus",
    ),
    (
        "kvring_admitted_share",
        "Share of requests whose new chunks are stored, of namespaces without a quota.",
        "admitted_share",
    ),
    ("kvring_open_seconds", "Time since the open.", "open_s"),
    ("kvring_io_threads", "I/O threads that work now.", "io_threads"),
)

_OF_PATHS: Final = (
    ("kvring_chunks", "Chunks stored.", "keys"),
    ("kvring_stored_bytes", "Payload stored.", "stored_bytes"),
    ("kvring_allocated_bytes", "Disk space of chunks, in whole blocks.", "allocated_bytes"),
    ("kvring_used_bytes", "Capacity in use, by data files and index.", "used_bytes"),
    ("kvring_capacity_bytes", "Configured capacity.", "capacity_bytes"),
    ("kvring_leased_bytes", "Disk space of leased chunks.", "leased_bytes"),
    ("kvring_pinned_bytes", "Disk space of pinned chunks.", "pinned_bytes"),
    ("kvring_path_stuck", "1 if the drive answers nothing.", "stuck"),
    ("kvring_path_unused", "1 if the path was written to and never hit.", "unused"),
)

# Of each metric that is of stats(): its name there, or those by value of the label.
SOURCES: Final[dict[str, str | dict[str, str]]] = {
    **{name: values for name, _, _, values in _LABELLED},
    **{name: source for name, _, source in (*_COUNTERS, *_GAUGES, *_OF_PATHS)},
}


class StoreCollector:
    """Tells the metrics of every store that was added and is open.

    It takes no lock: a fork could find it held by a thread that it does not have.
    """

    def __init__(self) -> None:
        """Know of no store yet."""
        self._stores: weakref.WeakValueDictionary[str, Connector] = weakref.WeakValueDictionary()

    def add(self, store: Connector) -> None:
        """Tell of a store from now on, under the name of its first path."""
        self._stores[store.stats()["paths"][0]["path"]] = store

    def paths(self) -> list[dict[str, Any]]:
        """Return what `stats()` tells of each path of each store that is open."""
        found = []
        for store in list(self._stores.values()):
            with suppress(KvRingError):
                store.usage()
                found += store.stats()["paths"]
        return found

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names do not depend on it."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics now."""
        stores = []
        for path, store in self._stores.items():
            # One that is closed, or of which this process is a fork, has nothing to tell.
            with suppress(KvRingError):
                stores.append((path, store.stats(), store.usage(), store))
        yield from _state([(path, stats) for path, stats, _, _ in stores])
        yield from _namespaces([(path, usage) for path, _, usage, _ in stores])
        yield from _recovery([(path, store) for path, _, _, store in stores])
        yield from _latencies([(path, store) for path, _, _, store in stores])


def _state(stores: list[tuple[str, dict[str, Any]]]) -> Iterator[Metric]:
    for name, text, label, sources in _LABELLED:
        family: Metric = CounterMetricFamily(name, text, labels=["store", label])
        for store, stats in stores:
            for value, source in sources.items():
                family.add_metric([store, value], stats[source])
        yield family
    for kind, sources_of_kind in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for name, text, source in sources_of_kind:
            family = kind(name, text, labels=["store"])
            for store, stats in stores:
                family.add_metric([store], stats[source])
            yield family
    unused = SummaryMetricFamily(
        "kvring_evicted_unused_seconds",
        "Idle time of evicted chunks.",
        labels=["store"],
    )
    for store, stats in stores:
        unused.add_metric([store], stats["evicted"], stats["evicted_unused_ms"] / 1000)
    yield unused
    paths = [(store, path) for store, stats in stores for path in stats["paths"]]
    for name, text, source in _OF_PATHS:
        family = GaugeMetricFamily(name, text, labels=["store", "path"])
        for store, path in paths:
            family.add_metric([store, path["path"]], float(path[source]))
        yield family
    streams = CounterMetricFamily(
        "kvring_stream_written_bytes",
        "Bytes written to a write stream, in whole blocks.",
        labels=["store", "path", "stream", "content"],
    )
    for store, path in paths:
        for one in path["write_streams"]:
            labels = [store, path["path"], str(one["stream"]), one["content"]]
            streams.add_metric(labels, one["written_bytes"])
    yield streams
    up = GaugeMetricFamily(
        "kvring_path_up",
        "1 if the path is in use and has not failed.",
        labels=["store", "path"],
    )
    healthy = GaugeMetricFamily(
        "kvring_path_healthy", "1 if nothing fails at the path now.", labels=["store", "path"]
    )
    engine = GaugeMetricFamily(
        "kvring_engine_info",
        "Always 1.",
        labels=["store", "engine", "version"],
    )
    for store, path in paths:
        up.add_metric([store, path["path"]], float(path["in_use"] and not path["reason"]))
        healthy.add_metric([store, path["path"]], float(not path["trouble"]))
    for store, stats in stores:
        engine.add_metric([store, stats["engine"], __version__], 1)
    yield up
    yield healthy
    yield engine


def _namespaces(stores: list[tuple[str, dict[str, dict[str, Any]]]]) -> Iterator[Metric]:
    taken = GaugeMetricFamily(
        "kvring_namespace_bytes",
        f"Disk space of the largest {_MOST_NAMESPACES} namespaces, and of the others.",
        labels=["store", "namespace"],
    )
    for store, usage in stores:
        sizes = sorted(
            ((one["allocated_bytes"], name) for name, one in usage.items()), reverse=True
        )
        for size_bytes, name in sizes[:_MOST_NAMESPACES]:
            taken.add_metric([store, name], size_bytes)
        if rest := sizes[_MOST_NAMESPACES:]:
            taken.add_metric([store, _OTHERS], sum(size_bytes for size_bytes, _ in rest))
    yield taken


def _recovery(stores: list[tuple[str, Connector]]) -> Iterator[Metric]:
    found = GaugeMetricFamily(
        "kvring_recovered_records",
        "Records that the open kept or discarded.",
        labels=["store", "outcome"],
    )
    reset = GaugeMetricFamily(
        "kvring_index_reset",
        "1 if the open lost the whole index of a path.",
        labels=["store"],
    )
    for path, store in stores:
        recovery = store.recovery
        for outcome, count in recovery.items():
            if type(count) is int:
                found.add_metric([path, outcome], count)
        reset.add_metric([path], float(recovery["reset"] is not None))
    yield found
    yield reset


def _latencies(stores: list[tuple[str, Connector]]) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        "kvring_latency_seconds",
        "Latency of operations.",
        labels=["store", "op", "phase"],
    )
    for path, store in stores:
        for op, phase, buckets, count, sum_us in store.latency_histograms():
            bounds = [(repr(bound_us / 1e6), float(up_to)) for bound_us, up_to in buckets]
            family.add_metric([path, op, phase], [*bounds, ("+Inf", float(count))], sum_us / 1e6)
    yield family


# The one of this process.
collector: Final = StoreCollector()
REGISTRY.register(collector)
