"""The page of `kvring top --web`: what a store does, in a browser of this machine."""

import json
import threading
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from kvring.cli.failure import Failure

__all__ = ["Page"]

_HOST: Final = "127.0.0.1"
_TIMEOUT_S: Final = 10.0
# Ten minutes at one a second.
_MOST_FRAMES: Final = 600


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with the page, or with the frames behind a moment."""

    timeout = _TIMEOUT_S
    server: "_Server"

    def do_GET(self) -> None:
        """Answer."""
        # A page of somebody else, under a name that leads here, gets nothing.
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (_HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        url = urlsplit(self.path)
        if url.path == "/":
            self._answer("text/html; charset=utf-8", self.server.page)
        elif url.path == "/frames":
            try:
                since_s = float(parse_qs(url.query).get("since_s", ["0"])[0])
            except ValueError:
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            newer = _behind(list(self.server.frames), since_s)
            self._answer("application/json", json.dumps(newer).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, content_type: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as it is called
        """Say nothing."""


def _behind(frames: list[dict[str, Any]], since_s: float) -> list[dict[str, Any]]:
    """Return what follows the frame of that moment; a clock that is set back holds nothing up."""
    seen = [number for number, one in enumerate(frames) if one["time_s"] == since_s]
    if seen:
        return frames[seen[-1] + 1 :]
    return [one for one in frames if one["time_s"] > since_s]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.page = files("kvring.cli").joinpath("page.html").read_bytes()
        self.frames: deque[dict[str, Any]] = deque(maxlen=_MOST_FRAMES)
        super().__init__((_HOST, port), _Handler)


class Page:
    """Serves the page until it is closed."""

    def __init__(self, port: int) -> None:
        """Listen on a port of this machine; 0 is any.

        Raises:
            Failure: The port cannot be had.
        """
        try:
            self._server = _Server(port)
        except OSError as error:
            message = f"port {port} of {_HOST} cannot be had: {error.strerror}; name another one"
            raise Failure(message) from error
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{_HOST}:{self._server.server_port}/"

    def show(self, frames: Iterable[dict[str, Any]]) -> None:
        """Show frames as they come."""
        self._server.frames.extend(frames)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
