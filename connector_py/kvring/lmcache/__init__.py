"""kvring as an L2 adapter of LMCache, of its type `plugin`.

LMCache loads it by name::

    {"type": "plugin", "module_path": "kvring.lmcache", "class_name": "KvringL2Adapter",
     "adapter_params": {"path": "/mnt/nvme/kvring", "capacity": "500GiB"}}

docs/lmcache.md compares it with the type `native_plugin`. A store is read by either.
"""

from kvring.lmcache.adapter import KvringL2Adapter, KvringL2AdapterConfig

__all__ = ["KvringL2Adapter", "KvringL2AdapterConfig"]
