"""The page of `kvring top --web`: what a store does, in a browser of this machine."""

import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from kvring.cli.failure import Failure
from kvring.history import History
from kvring.http_server import HOST, BoundedHandler, BoundedServer
from kvring.page import answer_page

__all__ = ["Page"]


class _Handler(BoundedHandler):
    """Answers GET with what belongs to the page."""

    server: "_Server"

    def do_GET(self) -> None:  # noqa: N802 - as it is called
        """Answer."""
        if not answer_page(self, [self.server.history]):
            self.send_error(HTTPStatus.NOT_FOUND)


class _Server(BoundedServer):
    def __init__(self, port: int, history: History) -> None:
        self.history = history
        super().__init__(port, _Handler)


class Page:
    """Serves the page until it is closed."""

    def __init__(self, port: int, store: str, interval_s: float) -> None:
        """Listen on a port of this machine; 0 is any.

        Args:
            port: The port.
            store: Its name on the page.
            interval_s: Time between two frames.

        Raises:
            Failure: The port cannot be had.
        """
        self._history = History(store, interval_s)
        try:
            self._server = _Server(port, self._history)
        except OSError as error:
            message = f"port {port} of {HOST} cannot be had: {error.strerror}; name another one"
            raise Failure(message) from error
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self._server.server_port}/"

    def recall(self, document: dict[str, Any]) -> None:
        """Show what the owner remembers: the document of its history."""
        self._history.add_document(document)

    def show(self, frames: Iterable[dict[str, Any]]) -> None:
        """Show frames as they come."""
        for frame in frames:
            self._history.add(frame)

    def fail(self, reason: str) -> None:
        """Say why no frame comes, until one does."""
        self._history.fail(reason)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
