"""SGLang's real host pools and controllers, without a GPU, and kvring as their storage backend."""

import array
import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sglang.srt.mem_cache.utils as sglang_utils
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool import MambaPool, MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S

KINDS: Final = ("mha", "mla")
LAYOUTS: Final = ("page_first", "layer_first", "page_first_direct")
MODEL: Final = "org/tiny"
PAGE_TOKENS: Final = 4
LAYERS: Final = 3
TOKENS: Final = 64

# SGLang leaves 10 GiB of the machine's memory to others, unless it is told what it may have.
_MEMORY_BYTES: Final = 1 << 30

_ONE_RANK: Final = {
    "tp_rank": 0,
    "tp_size": 1,
    "pp_rank": 0,
    "pp_size": 1,
    "attn_cp_rank": 0,
    "attn_cp_size": 1,
}
_ONE_PARALLEL: Final = {
    "tp_rank": 0,
    "tp_size": 1,
    "pp_rank": 0,
    "pp_size": 1,
    "attn_dcp_rank": 0,
    "attn_dcp_size": 1,
}


def page_keys(count: int, salt: object = "") -> list[str]:
    """Return keys in the form that SGLang gives them."""
    return [hashlib.sha256(f"{salt}/{number}".encode()).hexdigest() for number in range(count)]


def content_of(key: str, length_bytes: int, version: int = 0) -> bytes:
    """Return the bytes of a page: others for each key and version."""
    return random.Random(f"{key}/{version}").randbytes(length_bytes)


def device_pool(
    kind: str,
    *,
    layers: int = LAYERS,
    page_tokens: int = PAGE_TOKENS,
    dtype: torch.dtype = torch.bfloat16,
    width: int = 8,
) -> Any:
    """Make the pool that stands for the GPU's; the width decides how long pages are."""
    common = {
        "size": TOKENS,
        "page_size": page_tokens,
        "dtype": dtype,
        "layer_num": layers,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if kind == "mha":
        return MHATokenToKVPool(head_num=2, head_dim=width, **common)
    return MLATokenToKVPool(kv_lora_rank=2 * width, qk_rope_head_dim=width, **common)


def host_pool(kind: str, layout: str, device: Any) -> Any:
    """Make the pool in memory for a pool of the GPU; it has room for twice as much."""
    buffers = device.get_device_pool_infos()[0].buffer_info
    options = {
        "pin_memory": False,
        "device": "cpu",
        "device_capacity_tokens": device.size,
        "start_layer": device.start_layer,
        "end_layer": device.end_layer,
    }
    with host_memory_budget_scope(_MEMORY_BYTES):
        if kind == "mha":
            return MHATokenToKVPoolHost(buffers, 2.0, 0, device.page_size, layout, **options)
        options |= {
            "override_kv_cache_dim": device.kv_cache_dim,
            "target_layer_num": device.layer_num,
        }
        return MLATokenToKVPoolHost(buffers, 2.0, 0, device.page_size, layout, **options)


def mamba_pools(layout: str = "page_first") -> tuple[Any, Any]:
    """Make the pools of Mamba states: the GPU's, and that in memory."""
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=8,
        n_groups=1,
        num_heads=2,
        head_dim=4,
        state_size=4,
        conv_kernel=4,
    )
    parameters = Mamba2CacheParams(shape=shape, layers=[0, 2])
    device = MambaPool(
        size=8,
        spec_state_size=0,
        cache_params=parameters,
        mamba_layer_ids=[0, 2],
        device="cpu",
    )
    buffers = device.get_device_pool_infos()[0].buffer_info
    with host_memory_budget_scope(_MEMORY_BYTES):
        options = {"device_capacity": 8, "pin_memory": False, "layout": layout}
        return device, MambaPoolHost(buffers, 2.0, 0, **options)


class Pages:
    """The pages of a host pool, by their row."""

    def __init__(self, pool: Any) -> None:
        """Look at a host pool."""
        self.pool = pool
        self.page_bytes: int = pool.get_dummy_flat_data_page().nbytes

    def rows(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the host indices of these rows."""
        size = self.pool.page_size
        tokens = [row * size + token for row in rows for token in range(size)]
        return torch.tensor(tokens, dtype=torch.int64)

    def write(self, indices: torch.Tensor, contents: Sequence[bytes]) -> None:
        """Put contents into pages."""
        like = self.pool.get_dummy_flat_data_page()
        for start, content in zip(self._starts(indices), contents, strict=True):
            page = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(like.dtype)
            self.pool.set_from_flat_data_page(start, page)

    def read(self, indices: torch.Tensor) -> list[bytes]:
        """Return what is in pages."""
        pages = [self.pool.get_data_page(start, flat=True) for start in self._starts(indices)]
        return [page.contiguous().view(torch.uint8).numpy().tobytes() for page in pages]

    def fill(self, indices: torch.Tensor, keys: Sequence[str], version: int = 0) -> None:
        """Put the content of a key into each page."""
        self.write(indices, [content_of(key, self.page_bytes, version) for key in keys])

    def wipe(self, indices: torch.Tensor) -> None:
        """Put zeroes into pages."""
        self.write(indices, [bytes(self.page_bytes) for _ in self._starts(indices)])

    def hold(self, indices: torch.Tensor, keys: Sequence[str], version: int = 0) -> list[bool]:
        """Say of each page whether it has the content of its key."""
        wanted = [content_of(key, self.page_bytes, version) for key in keys]
        return [one == other for one, other in zip(self.read(indices), wanted, strict=True)]

    def _starts(self, indices: torch.Tensor) -> list[int]:
        starts: list[int] = indices[:: self.pool.page_size].tolist()
        return starts


def kvring_options(path: Path | str, *, v1: bool = True, **options: Any) -> dict[str, Any]:
    """Return what a user writes into --hicache-storage-backend-extra-config."""
    return {
        "backend_name": "kvring",
        "module_path": "kvring.sglang",
        "class_name": "HiCacheKvring",
        "interface_v1": int(v1),
        "path": str(path),
        "capacity": CAPACITY_BYTES,
        **options,
    }


def storage_config(
    options: dict[str, Any], kind: str = "mha", layout: str = "page_first", **fields: Any
) -> Any:
    """Return what SGLang's controller tells a backend of its rank."""
    return HiCacheStorageConfig(
        **_ONE_RANK
        | {
            "is_mla_model": kind == "mla",
            "is_page_first_layout": layout == "page_first",
            "enable_storage_metrics": False,
            "model_name": MODEL,
            "extra_config": options,
        }
        | fields
    )


def kvring_backend(config: Any, pool: Any, **more_pools: Any) -> Any:
    """Make the backend as the controller does, and have it know the pools."""
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    try:
        backend.register_mem_pool_host(pool)
        for name, one in {"kv": pool, **more_pools}.items():
            backend.register_mem_host_pool_v2(one, PoolName(name))
        backend.on_host_pools_registered()
    except BaseException:
        backend.close()
        raise
    return backend


class Rank:
    """A rank of a model: its host pools, and a backend that stores their pages."""

    def __init__(
        self,
        path: Path | str,
        kind: str = "mha",
        layout: str = "page_first",
        *,
        v1: bool = True,
        has_mamba: bool = False,
        shape: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Make the pools, and open the backend.

        Args:
            path: Of the store.
            kind: Of attention.
            layout: Of the host pool.
            v1: Whether SGLang passes addresses.
            has_mamba: Whether there are Mamba states as well.
            shape: Of the pool, as for `device_pool()`.
            options: Further ones, as a user writes them.
            **fields: Of SGLang's storage config.
        """
        self.device = device_pool(kind, **(shape or {}))
        self.pages = Pages(host_pool(kind, layout, self.device))
        self.states = Pages(mamba_pools()[1]) if has_mamba else None
        config = storage_config(kvring_options(path, v1=v1) | (options or {}), kind, layout)
        for name, value in fields.items():
            setattr(config, name, value)
        more = {} if self.states is None else {"mamba": self.states.pool}
        self.backend = kvring_backend(config, self.pages.pool, **more)

    @property
    def tasks(self) -> Any:
        """The tasks of the store of this rank."""
        return self.backend._own.tasks

    @property
    def connector(self) -> Any:
        """The store of this rank."""
        return self.backend._own.connector

    def form(self, pool: str = "kv") -> Any:
        """How pages of a pool are stored."""
        return self.backend._pools[pool].form

    def store(self, keys: Sequence[str], version: int = 0, first_row: int = 0) -> list[bool]:
        """Store a page for each key, from the rows behind the first one."""
        rows = self.pages.rows(range(first_row, first_row + len(keys)))
        self.pages.fill(rows, keys, version)
        stored: list[bool] = self.backend.batch_set_v1(list(keys), rows)
        return stored

    def load(self, keys: Sequence[str], version: int = 0, first_row: int = 0) -> list[bool | None]:
        """Load a page for each key; None is one that is said to be there, and has other bytes."""
        rows = self.pages.rows(range(first_row, first_row + len(keys)))
        self.pages.wipe(rows)
        loaded = self.backend.batch_get_v1(list(keys), rows)
        right = self.pages.hold(rows, keys, version)
        return [
            is_right or None if ok else False for ok, is_right in zip(loaded, right, strict=True)
        ]

    def delete_part(self, key: str, part: int, pool: str = "kv") -> None:
        """Remove one of the chunks of a page."""
        chunk = f"{self.form(pool).prefix}@{part:x}@{key}"
        outcome = self.tasks.wait(self.connector.submit_batch_delete([chunk]))
        assert outcome[1] == [True], chunk

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()


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
        from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (
            HybridCacheController,
        )
        from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry

        self.options = options
        self.is_hybrid = is_hybrid
        self._parallel = _ONE_PARALLEL | (parallel or {})
        device = device_pool(kind)
        self.pages = Pages(host_pool(kind, layout, device))
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
