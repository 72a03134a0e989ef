"""An HTTP server of this machine whose clients cannot take much of the process that it is in."""

import io
import logging
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from kvring.socket_peers import OUT_OF_DESCRIPTORS, PAUSE_S

__all__ = ["HOST", "BoundedHandler", "BoundedServer"]

HOST: Final = "127.0.0.1"
# Of a whole request, and of its answer.
_DEADLINE_S: Final = 10.0
_MOST_REQUEST_BYTES: Final = 8192
# Any user of the machine may connect, and each one takes a thread of the engine.
_MOST_CONNECTIONS: Final = 16
# How long one waits for the place of a connection that was hung up on.
_HANG_UP_S: Final = 1.0

_logger = logging.getLogger(__name__)


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


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads one request, up to a deadline and a length; a subclass answers it."""

    timeout = _DEADLINE_S

    def setup(self) -> None:
        """Read through what ends."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def answer(self, status: HTTPStatus, content: bytes, content_type: str, **headers: str) -> None:
        """Answer with a document; `_` in the name of a header is `-`."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        """Answer."""
        raise NotImplementedError

    def do_HEAD(self) -> None:
        """Answer as GET, without the document: `answer()` and `send_error()` leave it out."""
        self.do_GET()

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://{HOST}:{self.connection.getsockname()[1]}/"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as it is called
        """Keep what is asked every few seconds out of the log of an engine."""
        _logger.debug(format, *arguments)


class BoundedServer(ThreadingHTTPServer):
    """Hangs up on the oldest connection where they are too many: slow strangers keep nobody out."""

    daemon_threads = True
    # Whoever finds it full tries again a second later.
    request_queue_size = 128

    def __init__(self, port: int, handler: type[BoundedHandler]) -> None:
        """Listen on a port of this machine; 0 is any.

        Raises:
            OSError: The port cannot be had.
        """
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        # Oldest first. Those that are hung up on are not in it.
        self._connections: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((HOST, port), handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; wait a moment where the process has no descriptor left."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection, or hang up on it."""
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
        """Close a connection."""
        # Before it is closed: its descriptor may be another's then.
        self._forget(request)
        super().shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and give back the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()
