"""The page that shows what stores do, as servers of this machine hand it to browsers."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs, urlsplit

from kvring.history import History
from kvring.http_server import HOST, BoundedHandler

__all__ = ["answer_page"]

_HOSTS: Final = (HOST, "localhost")
_TYPES: Final = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "scales.js": "text/javascript; charset=utf-8",
}
# Read now: later a process may have given up the right to.
_CONTENTS: Final = {name: files(__name__).joinpath(name).read_bytes() for name in _TYPES}
_HEADERS: Final = {
    # A name that somebody gave to a model runs nothing, and nothing comes from elsewhere.
    "Content_Security_Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "X_Content_Type_Options": "nosniff",
    "Cache_Control": "no-store",
}


def answer_page(handler: BoundedHandler, histories: Sequence[History]) -> bool:
    """Answer a request for the page, a part of it, or `/frames`, its numbers.

    No request makes a store do anything: it gets what was sampled before. `/frames` has the
    parameters `store` (its name; the first one if absent), and `series` and `after` as in
    `History.document`.

    Returns:
        Whether the request was for any of them. If not, nothing was answered.
    """
    url = urlsplit(handler.path)
    name = url.path[1:] or "page.html"
    if name != "frames" and name not in _CONTENTS:
        return False
    # A page of somebody else, under a name that leads here, gets nothing.
    if handler.headers.get("Host", "").partition(":")[0] not in _HOSTS:
        handler.send_error(HTTPStatus.FORBIDDEN, f"open it as {handler.url}")
    elif name == "frames":
        _answer_frames(handler, histories, url.query)
    else:
        handler.answer(HTTPStatus.OK, _CONTENTS[name], _TYPES[name], **_HEADERS)
    return True


def _answer_frames(handler: BoundedHandler, histories: Sequence[History], query: str) -> None:
    found = {name: values[0] for name, values in parse_qs(query).items()}
    stores = {history.name: history for history in histories}
    name = found.get("store", next(iter(stores), ""))
    after = found.get("after", "0")
    if not after.isdecimal():
        handler.send_error(HTTPStatus.BAD_REQUEST, "`after` is a number")
        return
    if name in stores:
        document = stores[name].document(found.get("series", ""), int(after))
    else:
        document = json.dumps(
            {"failure": f"this process has {name or 'a store'} no longer open"}
        ).encode()
    names = json.dumps({"stores": list(stores), "store": name}).encode()
    # One object out of both.
    content = names[:-1] + b"," + document[1:]
    handler.answer(HTTPStatus.OK, content, "application/json", **_HEADERS)
