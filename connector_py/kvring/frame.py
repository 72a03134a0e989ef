"""What a store does between two answers of its owner: rates, shares and latencies."""

import heapq
from typing import Any, Final

__all__ = ["frame", "largest_namespaces"]

_OPERATIONS: Final = ("get", "set", "delete")
_PHASES: Final = ("wait", "device", "total")
_MOST_NAMESPACES: Final = 20
# What an operator looks for, and the counter of each.
_FAILURES: Final = {
    "late loads": "get_late",
    "read errors": "read_errors",
    "checksum mismatches": "checksum_mismatch",
    "queue full": "set_rejected_queue_full",
    "no space": "set_no_space",
    "quota full": "set_quota_full",
    "too long": "set_too_long",
    "path unavailable": "set_unavailable",
    "write errors": "set_io_error",
    "sync errors": "sync_errors",
    "hash collisions": "set_collision",
}


def frame(
    before: dict[str, Any] | None, now: dict[str, Any], between_s: float | None
) -> dict[str, Any]:
    """Return what happened between two answers to "stats"; since the open, without the first.

    Args:
        before: The first answer, if it is of the same open.
        now: The second one.
        between_s: Time from the first to the second.

    Returns:
        `time_s` (Unix time), `over_s`, `host`, rates in a second (`*_per_s`), `lookup_hit_ratio`
        and `load_hit_ratio` (None where nothing was asked), `hit_ratio_by_capacity` (of lookups,
        with 1, 1.5 and 2 times the capacity), `hit_ratio_since_open` (of lookups), `failures` (of
        each reason, `now` and `since_open`), `open_s` (seconds since the open), `latency_ms` (op,
        then phase, then p50 and p99; None where nothing was done), `space`, the largest
        `namespaces`, and `paths`.
    """
    stats, usage = now["stats"], now["usage"]
    was = before["stats"] if before is not None else {}
    over_s = between_s if before is not None else None

    def change(*names: str) -> float:
        return float(sum(stats[name] - was.get(name, 0) for name in names))

    def rate(*names: str) -> float | None:
        return change(*names) / over_s if over_s else None

    lookups, hits = change("exists_hits", "exists_misses"), change("exists_hits")
    extra_hits = {"1": 0.0, "1.5": change("would_hit_at_1_5x"), "2": change("would_hit_at_2x")}
    return {
        "time_s": now["time_s"],
        "over_s": over_s,
        "host": now["host"],
        "process_id": now["process_id"],
        "version": now["version"],
        "engine": stats["engine"],
        "read_bytes_per_s": rate("read_bytes"),
        "written_bytes_per_s": rate("written_bytes"),
        "loads_per_s": rate("get_hits", "get_misses"),
        "stores_per_s": rate("set_stored", "set_unchanged", "set_failed"),
        "lookups_per_s": rate("exists_hits", "exists_misses"),
        "evictions_per_s": rate("evicted"),
        "failed_loads_per_s": rate("get_late", "read_errors", "checksum_mismatch"),
        "failed_stores_per_s": rate("set_failed"),
        "failed_syncs_per_s": rate("sync_errors"),
        "lookup_hit_ratio": _ratio(hits, lookups),
        "load_hit_ratio": _ratio(change("get_hits"), change("get_hits", "get_misses")),
        "hit_ratio_by_capacity": {
            times: _ratio(min(hits + extra, lookups), lookups)
            for times, extra in extra_hits.items()
        },
        "hit_ratio_since_open": _ratio(
            stats["exists_hits"], stats["exists_hits"] + stats["exists_misses"]
        ),
        "failures": {
            reason: {"now": int(change(name)) if was else 0, "since_open": stats[name]}
            for reason, name in _FAILURES.items()
        },
        "open_s": stats["open_s"],
        "latency_ms": _latencies(before, now),
        "in_flight": stats["in_flight"],
        "store_queue_bytes": stats["set_queued_bytes"],
        "space": {
            name: stats[name]
            for name in (
                "keys",
                "stored_bytes",
                "allocated_bytes",
                "used_bytes",
                "capacity_bytes",
                "leased_bytes",
                "pinned_bytes",
            )
        },
        "namespaces": [
            {"name": name, "keys": one["keys"], "allocated_bytes": one["allocated_bytes"]}
            for name, one in largest_namespaces(usage).items()
        ],
        "paths": [
            {
                name: path[name]
                for name in (
                    "path",
                    "in_use",
                    "reason",
                    "trouble",
                    "note",
                    "used_bytes",
                    "capacity_bytes",
                )
            }
            for path in stats["paths"]
        ],
    }


def largest_namespaces(usage: dict[str, Any]) -> dict[str, Any]:
    """Return those of `usage()` that take the most, largest first."""
    return dict(
        heapq.nlargest(
            _MOST_NAMESPACES,
            usage.items(),
            key=lambda one: (one[1]["allocated_bytes"], one[1]["keys"], one[0]),
        )
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _latencies(
    before: dict[str, Any] | None, now: dict[str, Any]
) -> dict[str, dict[str, dict[str, float] | None]]:
    earlier = {
        (one["op"], one["phase"]): one for one in (before["latency"] if before is not None else [])
    }
    found: dict[str, dict[str, dict[str, float] | None]] = {op: {} for op in _OPERATIONS}
    for one in now["latency"]:
        was = earlier.get((one["op"], one["phase"]))
        counts = [
            (bound_us, up_to - (was["buckets"][number][1] if was else 0))
            for number, (bound_us, up_to) in enumerate(one["buckets"])
        ]
        count = one["count"] - (was["count"] if was else 0)
        found[one["op"]][one["phase"]] = (
            {"p50": _quantile(counts, count, 0.5), "p99": _quantile(counts, count, 0.99)}
            if count > 0
            else None
        )
    return found


def _quantile(cumulative: list[tuple[int, int]], count: int, quantile: float) -> float:
    """Return in ms where a quantile is, as if each bucket were filled evenly."""
    wanted = quantile * count
    lower_us, before = 0, 0
    for upper_us, up_to in cumulative:
        if up_to >= wanted and up_to > before:
            within = (wanted - before) / (up_to - before)
            return (lower_us + (upper_us - lower_us) * within) / 1000
        lower_us, before = upper_us, up_to
    return lower_us / 1000
