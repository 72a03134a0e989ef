"""SGLang's own controllers, without a GPU, and what its scheduler asks of them."""

import array
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sglang.srt.mem_cache.utils as sglang_utils
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from tests.python.conftest import HANG_DEADLINE_S
from tests.python.engines.sglang_host import (
    LAYERS,
    PAGE_TOKENS,
    TOKENS,
    Pages,
    device_pool,
    mamba_pools,
)
from tests.support.sglang_pools import MODEL, host_pool

_ONE_PARALLEL: Final = {
    "tp_rank": 0,
    "tp_size": 1,
    "pp_rank": 0,
    "pp_size": 1,
    "attn_dcp_rank": 0,
    "attn_dcp_size": 1,
}


def python_hash(tokens: Any, prior: bytes | None, page_size: int | None = None) -> Any:
    """Hash tokens as SGLang does; its own function is C++, and built when it is called first."""
    digest, hashes, step = prior or b"", [], page_size or max(len(tokens), 1)
    for first in range(0, len(tokens), step):
        page = array.array("I", list(tokens)[first : first + step]).tobytes()
        digest = hashlib.sha256(digest + page).digest()
        hashes.append(digest.hex())
    return hashes if page_size else hashes[0]


@contextmanager
def lone_process() -> Iterator[None]:
    """Let this process be all that there is of a model."""
    native = sglang_utils.get_native_hash
    sglang_utils.get_native_hash = python_hash
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        sglang_utils.get_native_hash = native


@dataclass
class Fetched:
    """What became of a prefetch."""

    operation: Any
    # As they were looked up, and as they were loaded.
    found_tokens: int
    tokens: int
    pool_hits: dict[str, int]


class Scheduler:
    """SGLang's controller, and the part of its scheduler that asks it for pages of the storage."""

    def __init__(
        self,
        options: dict[str, Any],
        kind: str = "mha",
        layout: str = "page_first",
        *,
        is_hybrid: bool = False,
        parallel: dict[str, int] | None = None,
    ) -> None:
        """Make pools, and a controller with a kvring store; a hybrid one has Mamba states too."""
        from sglang.srt.managers.cache_controller import HiCacheController
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
        from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry

        self.options = options
        self.is_hybrid = is_hybrid
        self._parallel = _ONE_PARALLEL | (parallel or {})
        device = device_pool(kind)
        self.pages = Pages(host_pool(device, layout))
        pools: Any = self.pages.pool
        make: Callable[..., Any] = HiCacheController
        more: dict[str, Any] = {}
        group = torch.distributed.group.WORLD
        if is_hybrid:
            mamba_device, mamba = mamba_pools()
            self.states = Pages(mamba)
            kv = PoolEntry(
                PoolName.KV, pools, device, lambda layer: layer, is_primary_index_anchor=True
            )
            state = PoolEntry(PoolName.MAMBA, mamba, mamba_device, {0: 0, 2: 1}.get)
            pools = HostPoolGroup([kv, state])
            make, group = HybridCacheController, None
            more = {"transfer_layer_id_max": LAYERS}
        allocator = PagedTokenToKVPoolAllocator(
            TOKENS,
            page_size=PAGE_TOKENS,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=device,
            need_sort=False,
        )
        self._pools = pools
        with self._ranks():
            self.controller = make(
                allocator,
                pools,
                PAGE_TOKENS,
                group,
                threading.Event(),
                io_backend="direct",
                storage_backend="dynamic",
                prefetch_threshold=PAGE_TOKENS,
                model_name=MODEL,
                storage_backend_extra_config=dict(options),
                **more,
            )

    @property
    def backend(self) -> Any:
        """The backend that the controller has made."""
        return self.controller.storage_backend

    def attach(self) -> None:
        """Attach the storage once more."""
        with self._ranks():
            self.controller.attach_storage_backend(
                "dynamic",
                prefetch_threshold=PAGE_TOKENS,
                model_name=MODEL,
                storage_backend_extra_config=dict(self.options),
            )

    def write(self, tokens: list[int], version: int = 0) -> Any:
        """Have the pages of a prompt stored, and its last state; return the acknowledged write."""
        hashes = self.hashes(tokens)
        indices = self._pools.alloc(len(tokens))
        self.pages.fill(indices, hashes, version)
        more: dict[str, Any] = {}
        if self.is_hybrid:
            state = self._pools.alloc(1, pool=PoolName.MAMBA)
            self.states.fill(state, hashes[-1:], version)
            more["extra_pools"] = [_of_state(state, hashes[-1])]
        number = self.controller.write_storage(indices, tokens, hashes, **more)
        operation = self.controller.ack_backup_queue.get(timeout=HANG_DEADLINE_S)
        assert operation.id == number
        self.pages.wipe(indices)
        self._pools.free(indices)
        if self.is_hybrid:
            self.states.wipe(state)
            self._pools.free(state, pool=PoolName.MAMBA)
        return operation

    def fetch(self, name: str, tokens: list[int], version: int = 0) -> Fetched:
        """Have pages of a prompt loaded, and look at the bytes of all that came."""
        request: Any = name
        more: dict[str, Any] = {}
        if self.is_hybrid:
            from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

            request = CacheRequestHandle(name, 0)
            state = self._pools.alloc(1, pool=PoolName.MAMBA)
            more["extra_pools"] = [_of_state(state, "__placeholder__")]
        operation = self.controller.prefetch(request, tokens, **more)
        assert self.controller.prefetch_hit_queue.get(timeout=HANG_DEADLINE_S) is operation
        found = operation.storage_hit_count
        acks: list[Any] = []
        operation.host_indices = self._pools.alloc(found)
        self.pages.wipe(operation.host_indices)
        self.controller.prefetch_buffer.put(operation)
        while not acks or not acks[-1].completed_req:
            acks.append(self.controller.ack_prefetch_queue.get(timeout=HANG_DEADLINE_S))
        loaded = max((ack.completed_tokens or 0 for ack in acks), default=0)
        hits: dict[str, int] = next((ack.pool_hits for ack in acks if ack.pool_hits), {})
        hashes = self.hashes(tokens)[: loaded // PAGE_TOKENS]
        right = self.pages.hold(operation.host_indices[:loaded], hashes, version)
        assert all(right), "wrong bytes"
        if hits.get(str(PoolName.MAMBA)):
            assert self.states.hold(state, hashes[-1:], version) == [True], "a wrong state"
        self._pools.free(operation.host_indices)
        if self.is_hybrid:
            self._pools.free(state, pool=PoolName.MAMBA)
        return Fetched(operation, found, loaded, hits)

    def hashes(self, tokens: list[int]) -> list[str]:
        """Return the keys of the whole pages of a prompt."""
        hashes: list[str] = self.controller.get_hash_str(tokens, None, PAGE_TOKENS)
        return hashes

    def close(self) -> None:
        """Detach the storage."""
        self.controller.detach_storage_backend()

    @contextmanager
    def _ranks(self) -> Iterator[None]:
        from sglang.srt.runtime_context import get_parallel

        # It is looked at while a storage is attached, and no later.
        with get_parallel().override(**self._parallel):
            yield


def _of_state(indices: torch.Tensor, key: str) -> Any:
    return PoolTransfer(
        PoolName.MAMBA,
        host_indices=indices,
        keys=[key],
        hit_policy=PoolHitPolicy.TRAILING_PAGES,
    )
