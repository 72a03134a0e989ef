"""What `/status` of an LMCache server says of a kvring store."""

from typing import Any

__all__ = ["report"]


def report(stats: dict[str, Any], usage: dict[str, Any], store_error: str) -> dict[str, Any]:
    """Describe a store.

    Args:
        stats: What `Connector.stats()` returned.
        usage: What `Connector.usage()` returned.
        store_error: Why the last store failed; empty if it succeeded.

    Returns:
        A dict of numbers, strings and bools, lists and dicts of these; "is_healthy" is False while
        something fails, and "problems" says what. "notes" has what is worth knowing beside that.
    """
    problems = [f"{path['path']}: {path['trouble']}" for path in stats["paths"] if path["trouble"]]
    if store_error:
        problems.append(f"the last store failed: {store_error}")
    return {
        "is_healthy": not problems,
        "type": "kvring",
        "problems": problems,
        "notes": [f"{path['path']}: {path['note']}" for path in stats["paths"] if path["note"]],
        "engine": stats["engine"],
        "io_threads": stats["io_threads"],
        "paths": [_path(path) for path in stats["paths"]],
        "keys": stats["keys"],
        "namespaces": len(usage),
        "stored_bytes": stats["stored_bytes"],
        "used_bytes": stats["used_bytes"],
        "capacity_bytes": stats["capacity_bytes"],
        "in_flight": stats["in_flight"],
        "set_queued_operations": stats["set_queued_operations"],
        "set_queued_bytes": stats["set_queued_bytes"],
        "registered_bytes": stats["registered_bytes"],
        "lookup_hit_ratio": _ratio(stats["exists_hits"], stats["exists_misses"]),
        "load_hit_ratio": _ratio(stats["get_hits"], stats["get_misses"]),
        "late_loads": stats["get_late"],
        "evicted": stats["evicted"],
        "expired": stats["expired"],
        "checksum_mismatches": stats["checksum_mismatch"],
        "read_errors": stats["read_errors"],
        "write_errors": stats["write_errors"],
    }


def _path(path: dict[str, Any]) -> dict[str, Any]:
    names = ("path", "in_use", "trouble", "last_error", "engine", "used_bytes", "capacity_bytes")
    return {name: path[name] for name in names}


def _ratio(hits: int, misses: int) -> float | None:
    """Return the share of hits; None where nothing was asked."""
    return hits / (hits + misses) if hits + misses else None
