"""SGLang's pools, storage configurations and backends, without a GPU; tests use them as well."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import torch

with warnings.catch_warnings():
    # Two of its modules warn, when they are imported, that they are for GPUs.
    warnings.filterwarnings("ignore", message="Only CUDA.*currently", category=UserWarning)
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

MODEL: Final = "org/model"
# Of the benchmarks.
PAGE_TOKENS: Final = 64

# SGLang leaves 10 GiB of the machine's memory to others, unless it is told what it may have.
MEMORY_BYTES: Final = 1 << 40


def device_pool(
    kind: str,
    dimensions: dict[str, int],
    *,
    tokens: int,
    page_tokens: int,
    layers: int,
    dtype: torch.dtype = torch.bfloat16,
) -> Any:
    """Make the pool that stands for the GPU's; the dimensions are those of "mha" or "mla"."""
    make = {"mha": MHATokenToKVPool, "mla": MLATokenToKVPool}[kind]
    return make(
        size=tokens,
        page_size=page_tokens,
        dtype=dtype,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
        **dimensions,
    )


def host_pool(device: Any, layout: str = "page_first", ratio: float = 2.0) -> Any:
    """Make the pool in memory for a pool of the GPU; it has room for `ratio` times as much."""
    buffers = device.get_device_pool_infos()[0].buffer_info
    options = {
        "pin_memory": False,
        "device": "cpu",
        "device_capacity_tokens": device.size,
        "start_layer": device.start_layer,
        "end_layer": device.end_layer,
    }
    make: Any = MHATokenToKVPoolHost
    if isinstance(device, MLATokenToKVPool):
        make = MLATokenToKVPoolHost
        options |= {
            "override_kv_cache_dim": device.kv_cache_dim,
            "target_layer_num": device.layer_num,
        }
    with host_memory_budget_scope(MEMORY_BYTES):
        return make(buffers, ratio, 0, device.page_size, layout, **options)


def mha_pool(pages: int, layers: int) -> Any:
    """Make the host pool of a model with 8 KV heads of 128: a page has 256 KiB a layer."""
    return _pool_of("mha", {"head_num": 8, "head_dim": 128}, pages, layers)


def mla_pool(pages: int, layers: int) -> Any:
    """Make the host pool of a model like DeepSeek V3: a page has 72 KiB a layer."""
    return _pool_of("mla", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, pages, layers)


def _pool_of(kind: str, dimensions: dict[str, int], pages: int, layers: int) -> Any:
    # The device's pool is only asked what its tokens look like.
    size = {"tokens": PAGE_TOKENS, "page_tokens": PAGE_TOKENS, "layers": layers}
    return host_pool(device_pool(kind, dimensions, **size), ratio=float(pages))


def kvring_options(
    path: Path | str, capacity_bytes: int, *, v1: bool = True, **options: Any
) -> dict[str, Any]:
    """Return what a user writes into --hicache-storage-backend-extra-config.

    Args:
        path: Of the store.
        capacity_bytes: Of the store.
        v1: Whether SGLang passes addresses.
        **options: Further ones.
    """
    return {
        "backend_name": "kvring",
        "module_path": "kvring.sglang",
        "class_name": "HiCacheKvring",
        "interface_v1": int(v1),
        "path": str(path),
        "capacity": capacity_bytes,
        **options,
    }


def storage_config(
    extra: dict[str, Any], kind: str = "mha", layout: str = "page_first", **fields: Any
) -> HiCacheStorageConfig:
    """Return what SGLang's controller tells a backend of its rank, by default the only one."""
    described = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": kind == "mla",
        "is_page_first_layout": layout == "page_first",
        "enable_storage_metrics": False,
        "model_name": MODEL,
        "extra_config": extra,
        **fields,
    }
    return HiCacheStorageConfig(**described)


def make_backend(name: str, config: HiCacheStorageConfig, pool: Any, **more_pools: Any) -> Any:
    """Make a backend as SGLang's controller does, and have it know the pools."""
    backend = StorageBackendFactory.create_backend(name, config, pool)
    try:
        backend.register_mem_pool_host(pool)
        # A hybrid model has its KV among them.
        pools = {"kv": pool, **more_pools} if more_pools else {}
        for other, one in pools.items():
            backend.register_mem_host_pool_v2(one, PoolName(other))
        backend.on_host_pools_registered()
    except BaseException:
        # SGLang's `file` has nothing to close.
        getattr(backend, "close", lambda: None)()
        raise
    return backend
