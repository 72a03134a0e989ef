"""kvring as a storage backend of SGLang's hierarchical cache (HiCache), without LMCache.

SGLang loads it by name, with `--hicache-storage-backend dynamic` and, as
`--hicache-storage-backend-extra-config`::

    {"backend_name": "kvring", "module_path": "kvring.sglang", "class_name": "HiCacheKvring",
     "interface_v1": 1, "path": "/mnt/nvme/kvring", "capacity": "500GiB"}

docs/how-to/sglang.md has the whole command, and what the ranks of a model share.
"""

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    # Versions before 0.5.23 lack it, and would fail when the backend is opened.
    if not hasattr(HiCacheStorageConfig, "is_storage_writer"):
        text = "HiCacheStorageConfig has no is_storage_writer"
        raise ImportError(text, name="sglang")
    from kvring.sglang.backend import HiCacheKvring
except ImportError as error:
    if not (error.name or "").startswith("sglang"):
        raise
    message = f"kvring.sglang needs SGLang 0.5.23 or newer ({error})"
    raise ImportError(message) from error

__all__ = ["HiCacheKvring"]
