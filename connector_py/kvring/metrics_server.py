"""An endpoint for Prometheus, for whoever asks whether the stores are well, and for browsers."""

import json
import logging
import os
import socket
import threading
import weakref
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from kvring._native import Connector
from kvring.history import History
from kvring.http_server import BoundedHandler, BoundedServer
from kvring.metrics import collector
from kvring.page import answer_page

__all__ = ["serve_metrics", "stop_serving"]

_logger = logging.getLogger(__name__)

# Those of this process, by port.
_servers: dict[int, "_Server"] = {}
_lock = threading.RLock()


class _Handler(BoundedHandler):
    """Answers GET."""

    server: "_HttpServer"

    def do_GET(self) -> None:  # noqa: N802 - as it is called
        """Answer with the metrics of the process, the health of its stores, or the page."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.answer(HTTPStatus.OK, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
        elif path == "/healthz":
            paths = [
                {name: one[name] for name in ("path", "in_use", "reason", "trouble", "note")}
                for one in collector.paths()
            ]
            is_healthy = bool(paths) and all(one["in_use"] and not one["trouble"] for one in paths)
            status = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
            document = {"healthy": is_healthy, "paths": paths}
            self.answer(status, json.dumps(document).encode() + b"\n", "application/json")
        elif not answer_page(self, self.server.histories()):
            self.send_error(HTTPStatus.NOT_FOUND, "here are /, /metrics and /healthz")


class _HttpServer(BoundedServer):
    """Knows the stores for which it listens, and what they did."""

    def __init__(self, port: int) -> None:
        # Changed under the lock of the module.
        self.stores: weakref.WeakKeyDictionary[Connector, History] = weakref.WeakKeyDictionary()
        super().__init__(port, _Handler)

    def histories(self) -> list[History]:
        """Return what the stores did."""
        with _lock:
            return list(self.stores.values())


class _Server:
    """A port, and the thread that serves it."""

    def __init__(self, port: int) -> None:
        self.http: Final = _HttpServer(port)
        thread = threading.Thread(
            target=self.http.serve_forever, name="kvring-metrics", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self.http.server_close()
            raise


def serve_metrics(store: Connector, history: History, port: int) -> None:
    """Serve `/metrics`, `/healthz` and the page on a port of this machine until a store is closed.

    Stores of a process may share a port. Where it cannot be had the log says so, and all else goes
    on.
    """
    with _lock:
        server = _servers.get(port)
        if server is None:
            try:
                server = _servers[port] = _Server(port)
            except (OSError, RuntimeError) as error:
                _logger.warning(
                    "metrics_port %d: nothing is served there: %s; name another port, or 'off'",
                    port,
                    error,
                )
                return
        server.http.stores[store] = history


def stop_serving(store: Connector) -> None:
    """Give back the port, if no other store is served there."""
    with _lock:
        for port, server in list(_servers.items()):
            server.http.stores.pop(store, None)
            if not server.http.stores:
                del _servers[port]
                server.http.shutdown()
                with suppress(OSError):
                    # A fork may not have closed its copy yet, which would keep the port listening.
                    server.http.socket.shutdown(socket.SHUT_RDWR)
                server.http.server_close()


def _close_in_child() -> None:
    """Leave the ports to the process whose threads answer there."""
    _lock.release()
    for server in _servers.values():
        server.http.socket.close()
    _servers.clear()


os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_in_child
)
