"""The class that LMCache loads: the native one, with its metrics and its socket."""

import inspect
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvring import _native
from kvring.history import History
from kvring.owner_socket import OwnerSocket

# Not at the first open: by then a process may have given up the right to read its packages.
try:
    from kvring.metrics import collector
    from kvring.metrics_server import serve_metrics, stop_serving
except ImportError:
    _has_prometheus = False
else:
    _has_prometheus = True

__all__ = ["Connector"]

_logger = logging.getLogger(__name__)


class Connector(_native.Connector):
    """A store of KV-cache chunks on a local disk, as LMCache's native_plugin adapter wants it."""

    _socket: OwnerSocket

    # Its arguments are those of the native class, which has opened the store by then.
    if not TYPE_CHECKING:
        __signature__ = inspect.signature(_native.Connector)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            del arguments, options
            self._socket = OwnerSocket(self)
            _tell_prometheus(self)

    def serve(self, request: str, serve: Callable[[socket.socket], None]) -> None:
        """Have connections on the store's socket with this request served, each in a thread."""
        self._socket.serve(request, serve)

    @property
    def history(self) -> History:
        """What the store did in the last hour."""
        return self._socket.sampler.history

    def close(self, timeout_s: float = 20.0, drain_s: float | None = None) -> dict[str, Any]:
        """Close the store, as the native class does; nobody can ask its owner any more."""
        self._socket.close()
        if _has_prometheus and self.metrics_port is not None:
            stop_serving(self)
        return super().close(timeout_s, drain_s)

    def __exit__(self, *exception: object) -> None:
        """Close the store."""
        self.close()


def _tell_prometheus(store: Connector) -> None:
    if not _has_prometheus:
        if store.metrics_port is not None:
            _logger.warning("metrics_port: nothing is served, prometheus_client is not installed")
        return
    try:
        collector.add(store)
        if store.metrics_port is not None:
            serve_metrics(store, store.history, store.metrics_port)
    except Exception:
        # A store is worth more than its metrics.
        _logger.exception("Prometheus gets no metrics of this store")
