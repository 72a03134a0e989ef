"""LMCache's runtime reconfiguration: the limits of a store that can be changed while it is open."""

from typing import Any, Final

from lmcache.v1.distributed.l2_adapters.reconfiguration import (
    L2ReconfigureError,
    L2ReconfigureStatus,
)

from kvring._native import ClosedError, ConfigError
from kvring.connector import Connector

__all__ = ["reconfigure", "status"]

# The option that each operation changes, by its name.
_OPTIONS: Final = {"resize": "capacity", "ttl": "ttl", "quotas": "quotas"}


def status(store: Connector) -> L2ReconfigureStatus:
    """Tell the limits of a store, and how far it is within its capacity.

    Raises:
        L2ReconfigureError: It is closed.
    """
    try:
        limits = store.limits()
    except ClosedError as error:
        raise L2ReconfigureError(503, str(error)) from error
    stats = store.stats()
    figures = {name: stats[name] for name in ("used_bytes", "pinned_bytes", "leased_bytes")}
    is_within = all(path["used_bytes"] <= path["capacity_bytes"] for path in stats["paths"])
    return {
        "backend": "kvring",
        "supported_operations": [*_OPTIONS, "status"],
        "status": {**limits, **figures, "is_within_capacity": is_within},
    }


def reconfigure(store: Connector, operation: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Change a limit: `resize` takes `capacity`, `ttl` takes `ttl`, `quotas` takes `quotas`.

    Returns:
        The limits as they are then. A store that became smaller is brought down to its capacity
        in the background: `is_within_capacity` tells.

    Raises:
        L2ReconfigureError: There is no such operation, its value does not fit, or the store is
            closed; nothing has changed.
    """
    if operation != "status":
        option = _OPTIONS.get(operation)
        if option is None:
            known = ", ".join([*_OPTIONS, "status"])
            raise L2ReconfigureError(400, f"no operation {operation!r}; there are {known}")
        if set(payload) != {option}:
            given = ", ".join(sorted(payload)) or "nothing"
            raise L2ReconfigureError(400, f"{operation!r} takes {option!r} alone, not {given}")
        if payload[option] is None:
            raise L2ReconfigureError(400, f"{option!r} is null, which is no value")
        try:
            store.change_limits(**payload)
        except ConfigError as error:
            raise L2ReconfigureError(400, str(error)) from error
        except ClosedError as error:
            raise L2ReconfigureError(503, str(error)) from error
    return dict(status(store))
