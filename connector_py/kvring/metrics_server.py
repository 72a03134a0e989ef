"""An endpoint for Prometheus, and for whoever asks whether the stores are well."""

import io
import json
import logging
import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from kvring._native import Connector
from kvring.metrics import collector
from kvring.socket_peers import OUT_OF_DESCRIPTORS, PAUSE_S

__all__ = ["serve_metrics", "stop_serving"]

_HOST: Final = "127.0.0.1"
# Of a whole request, and of its answer.
_DEADLINE_S: Final = 10.0
_MOST_REQUEST_BYTES: Final = 8192
# Any user of the machine may connect, and each one takes a thread of the engine.
_MOST_CONNECTIONS: Final = 16
# How long one waits for the place of a connection that was hung up on.
_HANG_UP_S: Final = 1.0

_logger = logging.getLogger(__name__)

# Those of this process, by port.
_servers: dict[int, "_Server"] = {}
_lock = threading.RLock()


class _Request(io.RawIOBase):
    """What a client sends, up to a deadline and a length, however slowly it comes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ends_s = time.monotonic() + _DEADLINE_S
        self._left_bytes = _MOST_REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0 or self._left_bytes <= 0:
            message = "the request is too slow, or too long"
            raise TimeoutError(message)
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left_bytes))
        self._left_bytes -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    timeout = _DEADLINE_S

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        """Answer with the metrics of the process, or the health of its stores."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(REGISTRY))
        elif path == "/healthz":
            paths = [
                {name: one[name] for name in ("path", "in_use", "reason", "trouble", "note")}
                for one in collector.paths()
            ]
            is_healthy = bool(paths) and all(one["in_use"] and not one["trouble"] for one in paths)
            status = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
            document = {"healthy": is_healthy, "paths": paths}
            self._answer(status, "application/json", json.dumps(document).encode() + b"\n")
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "here are /metrics and /healthz")

    def _answer(self, status: HTTPStatus, content_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as it is called
        """Keep what is asked every few seconds out of the log of an engine."""
        _logger.debug(format, *arguments)


class _HttpServer(ThreadingHTTPServer):
    """Hangs up on the oldest connection where they are too many: slow strangers keep nobody out."""

    daemon_threads = True
    # Whoever finds it full tries again a second later.
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        # Oldest first. Those that are hung up on are not in it.
        self._connections: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((_HOST, port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._hang_up_on_oldest()
            # Its thread ends now, if it does not collect metrics.
            if not self._free.acquire(timeout=_HANG_UP_S):
                self.shutdown_request(request)
                return
        with self._lock:
            self._connections[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread is to be had.
            self._forget(request)
            self._free.release()
            self.shutdown_request(request)

    def _hang_up_on_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._connections), None)
            if oldest is not None:
                del self._connections[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as it is called
        """Keep what a client did to its connection out of the log of an engine."""
        _logger.debug("a connection of %s failed", client_address, exc_info=True)

    def shutdown_request(self, request: Any) -> None:
        # Before it is closed: its descriptor may be another's then.
        self._forget(request)
        super().shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Server:
    """A port, and the stores for which it is served."""

    def __init__(self, port: int) -> None:
        self.stores: weakref.WeakSet[Connector] = weakref.WeakSet()
        self.http = _HttpServer(port)
        thread = threading.Thread(
            target=self.http.serve_forever, name="kvring-metrics", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self.http.server_close()
            raise


def serve_metrics(store: Connector, port: int) -> None:
    """Serve `/metrics` and `/healthz` on a port of this machine until a store is closed.

    Stores of a process may share a port. Where it cannot be had the log says so, and all else goes
    on.
    """
    with _lock:
        server = _servers.get(port)
        if server is None:
            try:
                server = _servers[port] = _Server(port)
            except (OSError, RuntimeError) as error:
                _logger.warning("metrics_port %d: nothing is served there: %s", port, error)
                return
        server.stores.add(store)


def stop_serving(store: Connector) -> None:
    """Give back the port, if no other store is served there."""
    with _lock:
        for port, server in list(_servers.items()):
            server.stores.discard(store)
            if not server.stores:
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
