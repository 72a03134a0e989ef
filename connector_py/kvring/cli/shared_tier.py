"""The tier that nodes share, from a URL: an adapter of LMCache."""

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kvring._native import ConfigError
from kvring.cli.failure import WrongArguments
from kvring.shared_tier.limits import LIMITS, SharedLimits

__all__ = ["FORMS", "directory_of", "shared_tier", "take_options"]

FORMS: Final = "redis://HOST[:PORT], s3://BUCKET.HOST[:PORT][?region=REGION] or file:///DIRECTORY"
_REDIS_PORT: Final = 6379
# No IPv6: that was never tried.
_HOST: Final = re.compile(r"[\w.-]+", re.ASCII)


def shared_tier(url: str) -> dict[str, Any]:
    """Return LMCache's adapter for a URL.

    Raises:
        WrongArguments: It is not one of `FORMS`, or has a password.
    """
    # A password may have characters that end a host name.
    if "@" in url:
        text = (
            "--shared: what is before the @ would be seen by all users of this machine; set "
            "LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, where the server starts"
        )
        raise WrongArguments(text)
    # As does one behind the question mark.
    shown = url.partition("?")[0]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WrongArguments(f"--shared {shown!r}: {error}; write {FORMS}") from error
    query = dict(parse_qsl(parts.query))
    if parts.scheme in ("redis", "valkey") and _is_bare(parts) and not query and port != 0:
        return {"type": "resp", "host": parts.hostname, "port": port or _REDIS_PORT}
    if _is_bucket(parts) and set(query) <= {"region"} and port != 0:
        return {
            "type": "s3",
            "s3_endpoint": f"s3://{parts.netloc}",
            "s3_region": query.get("region", "us-east-1"),
        }
    if parts.scheme == "file" and not (parts.netloc or parts.query or parts.fragment):
        directory = unquote(parts.path)
        if directory.startswith("/") and directory.strip("/") and directory.isprintable():
            return {"type": "fs", "base_path": directory}
    raise WrongArguments(f"--shared {shown!r} is not valid; write {FORMS}")


def directory_of(tier: dict[str, Any] | None) -> list[Path]:
    """Return the directory of a shared tier, if it is one: containers have to mount it."""
    return [Path(tier["base_path"])] if tier is not None and tier["type"] == "fs" else []


def take_options(parameters: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a shared tier out of those of a store.

    Raises:
        WrongArguments: One of them does not fit.
    """
    taken = {name: parameters[name] for name in LIMITS if name in parameters}
    try:
        SharedLimits.take(parameters)
    except ConfigError as error:
        raise WrongArguments(str(error)) from error
    return taken


def _is_bucket(parts: SplitResult) -> bool:
    return parts.scheme == "s3" and _is_bare(parts) and "." in (parts.hostname or "")


def _is_bare(parts: SplitResult) -> bool:
    has_host = _HOST.fullmatch(parts.hostname or "") is not None
    return has_host and parts.path in ("", "/") and not parts.fragment
