"""What vLLM's offloading is given: tiers, as a user writes them, configurations and keys."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import OffloadKey, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL = "org/tiny"


def kvring_tier(path: Path | str, capacity: object, **options: Any) -> dict[str, Any]:
    """Return what a user writes into secondary_tiers for kvring."""
    named = {"type": "KvringTier", "module_path": "kvring.vllm"}
    return {**named, "path": str(path), "capacity": capacity, **options}


def file_tier(path: Path | str, **options: Any) -> dict[str, Any]:
    """Return what a user writes there for vLLM's own file tier."""
    return {"type": "fs", "root_dir": str(path), **options}


def make_config(
    tiers: Sequence[Any],
    *,
    rows: int,
    row_bytes: int,
    model: str = MODEL,
    dtype: str = "bfloat16",
    tokens_per_block: int = 16,
    blocks_per_chunk: int = 1,
    layers: Sequence[str] = ("layer.0", "layer.1"),
    tp_size: int = 1,
    dp_size: int = 1,
    dp_index: int = 0,
    events: bool = False,
    kv_cache_layout: str = "LBHNC",
    is_portable: bool = False,
    engine_id: str | None = None,
    **extra: Any,
) -> OffloadingConfig:
    """Return what vLLM makes of the options of a user.

    A row, which is a chunk, has `row_bytes` whatever the sizes, and the primary tier has `rows`.
    """
    worker_bytes, left = divmod(row_bytes, tp_size * blocks_per_chunk)
    if left:
        raise ValueError(f"{row_bytes} bytes are no whole blocks of {tp_size} workers")
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block, tuple(layers), 0),),
        worker_kv_bytes_per_block=worker_bytes,
        enable_kv_cache_events=events,
        extra_config={
            "cpu_bytes_to_use": rows * row_bytes,
            "secondary_tiers": list(tiers),
            **extra,
        },
        engine_id=engine_id or f"kvring-{uuid.uuid4().hex}",
        model=OffloadingModelConfig(name=model, dtype=dtype, max_model_len=4096),
        cache=OffloadingCacheConfig(tokens_per_block, blocks_per_chunk),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=tp_size,
            tp_size=tp_size,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=dp_index,
            data_parallel_size=dp_size,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=is_portable,
        ),
        kv_cache_layout=kv_cache_layout,
    )


def key_of(number: int) -> OffloadKey:
    """Return the key of a chunk: a hash of 32 bytes, in the first group of layers."""
    return make_offload_key(number.to_bytes(32, "big"), 0)
