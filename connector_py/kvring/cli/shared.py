"""The tier that nodes share, from a URL: an adapter of LMCache."""

from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from kvring.cli.failure import WrongArguments

__all__ = ["FORMS", "shared_tier"]

FORMS: Final = "redis://HOST[:PORT], s3://BUCKET.HOST[:PORT][?region=REGION] or file:///DIRECTORY"
_REDIS_PORT: Final = 6379


def shared_tier(url: str) -> dict[str, Any]:
    """Return LMCache's adapter for a URL.

    Raises:
        WrongArguments: It is not one of `FORMS`, or has a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WrongArguments(f"--shared {url!r}: {error}; write {FORMS}") from error
    if parts.username or parts.password:
        text = (
            f"--shared: what is before the @ of {parts.scheme}://...@{parts.hostname} would be "
            "seen by all users of this machine; set LMCACHE_RESP_USERNAME and "
            "LMCACHE_RESP_PASSWORD, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, where the "
            "server starts"
        )
        raise WrongArguments(text)
    query = dict(parse_qsl(parts.query))
    if parts.scheme in ("redis", "valkey") and _is_bare(parts) and not query:
        return {"type": "resp", "host": parts.hostname, "port": port or _REDIS_PORT}
    if parts.scheme == "s3" and _is_bare(parts) and set(query) <= {"region"}:
        endpoint = f"s3://{parts.netloc}"
        return {
            "type": "s3",
            "s3_endpoint": endpoint,
            "s3_region": query.get("region", "us-east-1"),
        }
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and not query:
        return {"type": "fs", "base_path": parts.path}
    raise WrongArguments(f"--shared {url!r} is not valid; write {FORMS}")


def _is_bare(parts: SplitResult) -> bool:
    return bool(parts.hostname) and parts.path in ("", "/") and not parts.fragment
