"""Versions of what kvring works with."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from kvring import __version__
from kvring.cli.doctor.findings import Finding, Level

__all__ = ["look_at_software"]

_TESTED_LMCACHE = ("0.5.6", "0.5.7rc2")


def look_at_software() -> Iterator[Finding]:
    """Look at which packages are beside kvring."""
    yield Finding(Level.OK, "kvring", __version__)
    lmcache, vllm = _version("lmcache"), _version("vllm")
    if lmcache is None:
        what = "not installed in this environment"
        remedy = "install kvring into the environment of the server"
        yield Finding(Level.NOTE, "LMCache", what, remedy)
    elif lmcache not in _TESTED_LMCACHE:
        remedy = f"tested with {' and '.join(_TESTED_LMCACHE)}; see docs/how-to/lmcache.md"
        yield Finding(Level.NOTE, "LMCache", lmcache, remedy)
    else:
        yield Finding(Level.OK, "LMCache", lmcache)
    if vllm is not None:
        yield Finding(Level.OK, "vLLM", vllm)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
