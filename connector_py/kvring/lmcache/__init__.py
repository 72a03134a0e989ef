"""kvring as an L2 adapter of LMCache, of its type `plugin`.

LMCache loads it by name::

    {"type": "plugin", "module_path": "kvring.lmcache", "class_name": "KvringL2Adapter",
     "adapter_params": {"path": "/mnt/nvme/kvring", "capacity": "500GiB"}}

docs/how-to/lmcache.md compares it with the type `native_plugin`. Neither finds chunks of the other.
`KvringSharedL2Adapter` is the same in front of a tier that many nodes share
(docs/how-to/shared-tier.md).
"""

from importlib.metadata import PackageNotFoundError, version

try:
    from kvring.lmcache.adapter import KvringL2Adapter, KvringL2AdapterConfig
    from kvring.shared_tier.adapter import KvringSharedL2Adapter, KvringSharedL2AdapterConfig
except ImportError as error:
    if not (error.name or "").startswith("lmcache"):
        raise
    try:
        found = f"LMCache {version('lmcache')} is installed"
    except PackageNotFoundError:
        found = "LMCache is not installed"
    message = (
        f"kvring.lmcache needs LMCache 0.5.6 or newer, and {found}; an older one takes kvring as "
        f"native_plugin, with module_path kvring and class_name Connector ({error})"
    )
    raise ImportError(message) from error

__all__ = [
    "KvringL2Adapter",
    "KvringL2AdapterConfig",
    "KvringSharedL2Adapter",
    "KvringSharedL2AdapterConfig",
]
