"""SGLang's real host pools, without a GPU, and kvring as their storage backend."""

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.runtime_context import get_context

from kvring.sglang.pools import Pool
from tests.python.conftest import CAPACITY_BYTES
from tests.support import sglang_pools
from tests.support.sglang_pools import MEMORY_BYTES, host_pool, make_backend, storage_config

KINDS: Final = ("mha", "mla")
LAYOUTS: Final = ("page_first", "layer_first", "page_first_direct")
PAGE_TOKENS: Final = 4
LAYERS: Final = 3
TOKENS: Final = 64


def page_keys(count: int, salt: object = "") -> list[str]:
    """Return keys in the form that SGLang gives them."""
    return [hashlib.sha256(f"{salt}/{number}".encode()).hexdigest() for number in range(count)]


KEYS: Final = page_keys(12)
MISSING: Final = page_keys(4, "missing")
BOTH_INTERFACES: Final = pytest.mark.parametrize("v1", [True, False], ids=["v1", "copies"])


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
    dimensions = {
        "mha": {"head_num": 2, "head_dim": width},
        "mla": {"kv_lora_rank": 2 * width, "qk_rope_head_dim": width},
    }
    return sglang_pools.device_pool(
        kind,
        dimensions[kind],
        tokens=TOKENS,
        page_tokens=page_tokens,
        layers=layers,
        dtype=dtype,
    )


def mamba_pools(layout: str = "page_first", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Make the pools of Mamba states: the GPU's, and that in memory; the dtype is SSM's."""
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=8,
        n_groups=1,
        num_heads=2,
        head_dim=4,
        state_size=4,
        conv_kernel=4,
    )
    dtypes = Mamba2StateDType(conv=torch.bfloat16, temporal=dtype)
    parameters = Mamba2CacheParams(shape=shape, layers=[0, 2], dtype=dtypes)
    device = MambaPool(
        size=8,
        spec_state_size=0,
        cache_params=parameters,
        mamba_layer_ids=[0, 2],
        device="cpu",
    )
    buffers = device.get_device_pool_infos()[0].buffer_info
    with host_memory_budget_scope(MEMORY_BYTES):
        options = {"device_capacity": 8, "pin_memory": False, "layout": layout}
        return device, MambaPoolHost(buffers, 2.0, 0, **options)


def namespace_of(pool: Any, name: str = "kv", **server: Any) -> str:
    """Return the namespace of a host pool under a server with some fields."""
    more = {"is_replicated": False, "in_place": True}
    with get_context().override_server_args(**server):
        return Pool(name, pool, storage_config({}), **more).form.namespace


def kv_pool(dtype: torch.dtype = torch.bfloat16, ratio: float = 2.0) -> Any:
    """Make a host pool of MHA."""
    return host_pool(device_pool("mha", dtype=dtype), ratio=ratio)


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
    """Return what a user writes for a small store; see `sglang_pools.kvring_options()`."""
    return sglang_pools.kvring_options(path, CAPACITY_BYTES, v1=v1, **options)


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
        self.pages = Pages(host_pool(self.device, layout))
        self.states = Pages(mamba_pools()[1]) if has_mamba else None
        config = storage_config(kvring_options(path, v1=v1) | (options or {}), kind, layout)
        for name, value in fields.items():
            setattr(config, name, value)
        more = {} if self.states is None else {"mamba": self.states.pool}
        self.backend = make_backend("dynamic", config, self.pages.pool, **more)

    @property
    def tasks(self) -> Any:
        """The tasks of the store of this rank."""
        return self.backend._store._own.tasks

    @property
    def connector(self) -> Any:
        """The store of this rank."""
        return self.backend._store._own.connector

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


# What the fixture `open_rank` gives.
OpenRank = Callable[..., Rank]
