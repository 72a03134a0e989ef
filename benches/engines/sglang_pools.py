"""SGLang's host pools and storage configurations, without a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

with warnings.catch_warnings():
    # Two of its modules warn, when they are imported, that they are for GPUs.
    warnings.filterwarnings("ignore", message="Only CUDA.*currently", category=UserWarning)
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

__all__ = ["PAGE_TOKENS", "make_backend", "mha_pool", "mla_pool", "storage_config"]

PAGE_TOKENS = 64


def mha_pool(pages: int, layers: int, layout: str = "page_first") -> Any:
    """Make the host pool of a model with 8 KV heads of 128: a page has 256 KiB a layer."""
    device = MHATokenToKVPool(head_num=8, head_dim=128, **_sizes(layers))
    infos = device.get_device_pool_infos()
    with host_memory_budget_scope(1 << 40):
        return MHATokenToKVPoolHost(*_of(infos, pages, layout), **_on_cpu(device))


def mla_pool(pages: int, layers: int, layout: str = "page_first") -> Any:
    """Make the host pool of a model like DeepSeek V3: a page has 72 KiB a layer."""
    device = MLATokenToKVPool(kv_lora_rank=512, qk_rope_head_dim=64, **_sizes(layers))
    infos = device.get_device_pool_infos()
    dimensions = {
        "override_kv_cache_dim": device.kv_cache_dim,
        "target_layer_num": device.layer_num,
    }
    with host_memory_budget_scope(1 << 40):
        return MLATokenToKVPoolHost(*_of(infos, pages, layout), **dimensions, **_on_cpu(device))


def storage_config(extra: dict[str, Any], **ranks: Any) -> HiCacheStorageConfig:
    """Describe a rank, by default the only one of an MHA model."""
    described = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "org/model",
        "extra_config": extra,
        **ranks,
    }
    return HiCacheStorageConfig(**described)


def make_backend(name: str, config: HiCacheStorageConfig, pool: Any) -> Any:
    """Make a backend as SGLang does, and give it the pool."""
    backend = StorageBackendFactory.create_backend(name, config, pool)
    backend.register_mem_pool_host(pool)
    return backend


def kvring_options(path: Path, capacity_bytes: int, **options: Any) -> dict[str, Any]:
    """Return the extra config that names kvring."""
    return {
        "backend_name": "kvring",
        "module_path": "kvring.sglang",
        "class_name": "HiCacheKvring",
        "interface_v1": 1,
        "path": str(path),
        "capacity": capacity_bytes,
        **options,
    }


def _sizes(layers: int) -> dict[str, Any]:
    # The device's pool is only asked what its tokens look like.
    return {
        "size": PAGE_TOKENS,
        "page_size": PAGE_TOKENS,
        "dtype": torch.bfloat16,
        "layer_num": layers,
        "device": "cpu",
        "enable_memory_saver": False,
    }


def _of(infos: Any, pages: int, layout: str) -> tuple[Any, ...]:
    return (infos[0].buffer_info, float(pages), 0, PAGE_TOKENS, layout)


def _on_cpu(device: Any) -> dict[str, Any]:
    return {
        "pin_memory": False,
        "device": "cpu",
        "device_capacity_tokens": device.size,
        "start_layer": device.start_layer,
        "end_layer": device.end_layer,
    }
