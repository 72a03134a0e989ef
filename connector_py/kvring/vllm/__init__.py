"""kvring as a secondary tier of vLLM's own KV offloading, without LMCache.

vLLM loads it by name, from `kv_connector_extra_config` of its OffloadingConnector::

    {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240,
     "secondary_tiers": [{"type": "KvringTier", "module_path": "kvring.vllm",
                          "path": "/mnt/nvme/kvring", "capacity": "500GiB"}]}

docs/how-to/vllm.md has the whole command, and how large to make what.
"""

try:
    from kvring.vllm.tier import KvringTier
except ImportError as error:
    if not (error.name or "").startswith("vllm"):
        raise
    message = f"kvring.vllm needs vLLM with secondary tiers, 0.33.0 or newer ({error})"
    raise ImportError(message) from error

__all__ = ["KvringTier"]
