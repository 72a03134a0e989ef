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

__all__ = ["StoreCollector", "collector"]

# Each namespace is a series: a store may have many tenants.
_MOST_NAMESPACES: Final = 50
_OTHERS: Final = "(others)"

# Name, help, label, and which counter of stats() has which value of the label.
_LABELLED: Final = (
    (
        "kvring_lookups",
        "Keys that were looked up.",
        "result",
        {"hit": "exists_hits", "miss": "exists_misses"},
    ),
    (
        "kvring_loads",
        "Keys that were to be loaded.",
        "result",
        {"hit": "get_hits", "miss": "get_misses"},
    ),
    (
        "kvring_load_failures",
        "Loads that missed although the key was stored.",
        "reason",
        {"late": "get_late", "read_error": "read_errors", "checksum": "checksum_mismatch"},
    ),
    (
        "kvring_stores",
        "Keys that were to be stored.",
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
        "Keys that could not be stored, by the code that their caller got.",
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
        "Keys that were to be deleted.",
        "result",
        {"deleted": "deleted", "absent": "delete_absent"},
    ),
    (
        "kvring_removed_chunks",
        "Chunks that went without being deleted.",
        "reason",
        {"evicted": "evicted", "expired": "expired", "purged": "purged"},
    ),
    (
        "kvring_removed_bytes",
        "Bytes of the chunks that went without being deleted.",
        "reason",
        {"evicted": "evicted_bytes", "expired": "expired_bytes"},
    ),
    (
        "kvring_transferred_bytes",
        "Payload that was moved between memory and the drive.",
        "op",
        {"read": "read_bytes", "write": "written_bytes"},
    ),
    (
        "kvring_unwritten_bytes",
        "Payload of stores that were not written, which spares the drive.",
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
        "Lookups and loads that missed, and would have hit with a larger capacity.",
        "capacity",
        {"1.5x": "would_hit_at_1_5x", "2x": "would_hit_at_2x"},
    ),
)

_COUNTERS: Final = (
    ("kvring_bounced_bytes", "Payload that was copied on its way.", "bounced_bytes"),
    ("kvring_transfers", "Transfers that were given to the drive.", "transfers"),
    ("kvring_slow_transfers", "Transfers that took longer than a second.", "transfers_slow"),
    ("kvring_leases_refused", "Leases that lookups did not get.", "leases_refused"),
    (
        "kvring_other_variant",
        "Misses of chunks that are stored with another dtype, shape, weights or epoch.",
        "other_variant",
    ),
    (
        "kvring_returned_keys",
        "Stores of keys that were evicted or not admitted, and are remembered.",
        "returned_keys",
    ),
    ("kvring_abandoned_operations", "Operations that close() dropped.", "abandoned"),
)

_GAUGES: Final = (
    ("kvring_in_flight_operations", "Keys submitted and not answered.", "in_flight"),
    ("kvring_store_queue_bytes", "Bytes of stores that are not answered.", "set_queued_bytes"),
    ("kvring_store_queue_operations", "Stores that are not answered.", "set_queued_operations"),
    ("kvring_registered_bytes", "Memory that is registered with the rings.", "registered_bytes"),
    (
        "kvring_eviction_bonus",
        "What adaptive eviction takes a chunk without uses for, in doublings of uses.",
        "eviction_bonus",
    ),
    (
        "kvring_admitted_share",
        "Share of requests whose new chunks are stored, of namespaces without a quota.",
        "admitted_share",
    ),
    ("kvring_open_seconds", "Time since the store was opened.", "open_s"),
    ("kvring_io_threads", "Threads that take work and move bytes.", "io_threads"),
)

_OF_PATHS: Final = (
    ("kvring_chunks", "Chunks that are stored.", "keys"),
    ("kvring_stored_bytes", "Payload that is stored.", "stored_bytes"),
    ("kvring_allocated_bytes", "Data files that hold chunks, in whole blocks.", "allocated_bytes"),
    ("kvring_used_bytes", "What data files and index take of the capacity.", "used_bytes"),
    ("kvring_capacity_bytes", "Capacity.", "capacity_bytes"),
    ("kvring_leased_bytes", "Data that must stay for loads to come.", "leased_bytes"),
    ("kvring_pinned_bytes", "Data that is pinned.", "pinned_bytes"),
    ("kvring_path_stuck", "Whether the drive answers nothing.", "stuck"),
    ("kvring_path_unused", "Whether much was written long since, and nothing found.", "unused"),
)


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
        "For how long chunks had not been used when they were evicted.",
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
        "Chunks that were written to a write stream of the drive, in whole blocks.",
        labels=["store", "path", "stream", "content"],
    )
    for store, path in paths:
        for one in path["write_streams"]:
            labels = [store, path["path"], str(one["stream"]), one["content"]]
            streams.add_metric(labels, one["written_bytes"])
    yield streams
    up = GaugeMetricFamily(
        "kvring_path_up",
        "Whether the path is in use and has not failed. The last one stays in use when it fails.",
        labels=["store", "path"],
    )
    healthy = GaugeMetricFamily(
        "kvring_path_healthy", "Whether nothing fails at the path now.", labels=["store", "path"]
    )
    engine = GaugeMetricFamily(
        "kvring_engine_info",
        "What moves the bytes, and the version of kvring.",
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
        f"What a namespace takes on disk; those past the largest {_MOST_NAMESPACES} together.",
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
        "What became of the records that the open found.",
        labels=["store", "outcome"],
    )
    reset = GaugeMetricFamily(
        "kvring_index_reset",
        "Whether the open lost the whole index of a path; the log has the reason.",
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
        "How long operations waited, were in the drive, and took from submit to answer.",
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
