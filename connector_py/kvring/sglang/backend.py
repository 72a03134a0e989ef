"""The storage backend between SGLang's cache controller and a kvring store."""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from kvring.logs import LogLimit
from kvring.sglang.metrics import TransferMetrics
from kvring.sglang.pools import Pages, Pool
from kvring.sglang.rank_store import RankStore

__all__ = ["HiCacheKvring"]

_logger = logging.getLogger(__name__)

# SGLang's own names, beside which the options of the store stand.
_OF_SGLANG: Final = (
    "allocator",
    "backend_name",
    "class_name",
    "file_storage_path",
    "interface_v1",
    "module_path",
)

_KV: Final = str(PoolName.KV)

_Call = TypeVar("_Call", bound=Callable[..., Any])


def _never_raises(without: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """Make a call of SGLang answer as without the store where it fails, and log why.

    SGLang's threads call these: an exception ends the thread, or the scheduler with it.

    Args:
        without: Given the call's own arguments; returns what the call answers then.
    """

    def wrap(call: _Call) -> _Call:
        @functools.wraps(call)
        def guarded(self: "HiCacheKvring", *arguments: Any, **named: Any) -> Any:
            try:
                return call(self, *arguments, **named)
            except Exception as error:  # noqa: BLE001
                self._note_failure(call.__name__, error)
                return without(*arguments, **named)

        return guarded  # type: ignore[return-value]

    return wrap


def _nothing_of(keys: list[str], *_: Any, **__: Any) -> list[bool]:
    return [False] * len(keys)


def _nothing_of_pools(transfers: list[PoolTransfer], *_: Any, **__: Any) -> dict[Any, list[bool]]:
    return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}


def _no_tensors(keys: list[str], *_: Any, **__: Any) -> list[None]:
    return [None] * len(keys)


def _no(*_: Any, **__: Any) -> bool:
    return False


class HiCacheKvring(HiCacheStorage):
    """A kvring store as SGLang's controller asks it (`mem_cache/hicache_storage.py` of 0.5.23).

    Each rank has a store of its own, in `rank-N` below the path. Where all ranks have the same KV
    (MLA) only the first of them writes it, and the others read it from the store of that one.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        """Open the store of this rank, or find that of the rank that writes for it.

        Args:
            storage_config: SGLang's. Its `extra_config` has the options of `kvring.Connector`;
                `{rank}` in a path is the number of the rank.
            kwargs: What SGLang passes to backends from outside; not used.

        Raises:
            ValueError: An option cannot be used; the message names it.
            KvRingError: As `kvring.Connector` does.
            OSError: Likewise.
        """
        del kwargs
        extra = storage_config.extra_config or {}
        options = {name: value for name, value in extra.items() if name not in _OF_SGLANG}
        self._config = storage_config
        self._takes_addresses = bool(extra.get("interface_v1"))
        self._pools: dict[str, Pool] = {}
        self._metrics = TransferMetrics(is_on=storage_config.enable_storage_metrics)
        self._store = RankStore(storage_config, options)
        self._log_limit = LogLimit()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool whose pages the calls without a pool are about."""
        super().register_mem_pool_host(mem_pool_host)
        self._add(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take another pool of a hybrid model."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(str(host_pool_name), host_pool)

    @_never_raises(lambda *_, **__: 0)
    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """Return how many leading pages are stored, and lease them."""
        del extra_info
        return self._leading(self._pools[_KV], keys)

    @_never_raises(_nothing_of)
    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Load pages into the pool; say of each whether it is there now, whole."""
        del extra_info
        return self._load_pools([(self._pools[_KV], keys, host_indices)])[0]

    @_never_raises(_nothing_of)
    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Store pages of the pool; say of each whether it is stored."""
        del extra_info
        return self._store_pools([(self._pools[_KV], keys, host_indices)])[0]

    @_never_raises(lambda *_, **__: PoolTransferResult(0, {}, []))
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Find the prefixes that can be restored in all pools; see HiCacheStorage."""
        del extra_info
        anchor = self._pools[_KV]
        pages = self._leading(anchor, keys)
        # A pool without memory has no verdict of its own.
        hits: dict[Any, int] = {PoolName.KV: pages} if pages and not anchor.is_logical else {}
        restorable = list(range(1, pages + 1))
        for transfer in pool_transfers or ():
            if not restorable:
                break
            pool = self._pools[str(transfer.name)]
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                boundary = self._leading(pool, keys[:pages])
                possible = set(range(1, boundary + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
                possible = _ends_of_windows(
                    self._store.exists(pool, keys[:pages], pool.form), window
                )
                boundary = max(possible, default=0)
            elif transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                # A second form of the same pages. It gates no hit.
                boundary = min(self._in_groups(pool, transfer), len(keys))
                possible = set(restorable)
            else:
                text = f"kvring.sglang does not know the hit policy {transfer.hit_policy}"
                raise ValueError(text)
            if boundary:
                hits[transfer.name] = boundary
            restorable = [one for one in restorable if one in possible]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    @_never_raises(_nothing_of_pools)
    def batch_get_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[Any, list[bool]]:
        """Load pages of several pools."""
        del extra_info
        return self._each_pool(self._load_pools, transfers)

    @_never_raises(_nothing_of_pools)
    def batch_set_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[Any, list[bool]]:
        """Store pages of several pools."""
        del extra_info
        return self._each_pool(self._store_pools, transfers)

    @_never_raises(lambda *_, **__: None)
    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """Load one page into a dense tensor on the CPU, which is as long as the page."""
        return self.batch_get([key], [target_location], target_sizes)[0]

    @_never_raises(_no_tensors)
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Load pages into tensors."""
        del target_sizes
        tensors = list(target_locations or ())
        pool = self._pools[_KV]
        loaded = self._load_all([(pool, pool.flat(keys, tensors))])[0]
        return [tensor if ok else None for tensor, ok in zip(tensors, loaded, strict=True)]

    @_never_raises(_no)
    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store one page from a tensor on the CPU."""
        tensor = value if value is not None else target_location
        return self.batch_set([key], [tensor], None, target_sizes)

    @_never_raises(_no)
    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store pages from tensors on the CPU; say whether all are stored."""
        del target_sizes
        tensors = [tensor.contiguous() for tensor in values or target_locations or ()]
        pool = self._pools[_KV]
        return all(self._store_all([(pool, pool.flat(keys, tensors))])[0])

    @_never_raises(_no)
    def exists(self, key: str) -> bool:
        """Say whether one page is stored, by whichever call."""
        pool = self._pools[_KV]
        return any(self._store.exists(pool, [key], form) == [True] for form in pool.forms)

    @_never_raises(_no)
    def clear(self) -> bool:
        """Remove all that this rank has stored of this model."""
        forms = [form for pool in self._pools.values() for form in pool.forms]
        self._store.clear({form.namespace for form in forms})
        return True

    def get_stats(self) -> Any:
        """Return SGLang's figures of transfers since the last call; None where it wants none."""
        return self._metrics.take()

    def close(self) -> None:
        """Finish or drop what is queued, and let go of all memory. Idempotent.

        Raises:
            RuntimeError: The drive does not answer, and the kernel still holds memory of the pools.
        """
        self._store.close()

    def _note_failure(self, call: str, error: Exception) -> None:
        """Log why a call failed, each call and kind of error once a minute."""
        if self._log_limit.is_due((call, type(error))):
            reason = f"pool {error} is not registered" if isinstance(error, KeyError) else error
            _logger.warning("%s: no page is stored or loaded: %s", call, reason)

    def _add(self, name: str, host_pool: Any) -> None:
        pool = Pool(
            name,
            host_pool,
            self._config,
            # What SGLang has the first rank alone store (should_backup in
            # hybrid_cache_controller.py), drafts of any kind included, is served to all of them.
            is_replicated=self._config.is_mla_model and name != PoolName.MAMBA,
            in_place=self._takes_addresses or name != _KV,
        )
        if name not in self._pools:
            self._store.register(pool, host_pool)
        self._pools[name] = pool

    def _each_pool(
        self,
        move: Callable[[list[tuple[Pool, list[str], Any]]], list[list[bool]]],
        transfers: list[PoolTransfer],
    ) -> dict[Any, list[bool]]:
        """Move pages of several pools; those that do not fit theirs fail, and the others go on."""
        results: dict[Any, list[bool]] = {}
        wanted = {}
        for transfer in transfers:
            keys = transfer.keys or []
            try:
                pool = self._pools[str(transfer.name)]
                pool.check(keys, transfer.host_indices)
            except (KeyError, ValueError) as error:
                self._note_failure(move.__name__.removeprefix("_"), error)
                results[transfer.name] = [False] * len(keys)
            else:
                wanted[transfer.name] = (pool, keys, transfer.host_indices)
        moved = move(list(wanted.values()))
        return {**results, **dict(zip(wanted, moved, strict=True))}

    def _leading(self, pool: Pool, keys: list[str]) -> int:
        # Without memory of its own it is stored by its sidecars alone.
        return len(keys) if pool.is_logical else self._store.count_leading(pool, keys)

    def _in_groups(self, pool: Pool, transfer: PoolTransfer) -> int:
        """Return how many pages the leading whole groups of a transfer's keys stand for."""
        if not transfer.keys or not transfer.group_pages:
            return 0
        groups = self._leading(pool, transfer.keys) // int(transfer.group_pages)
        return groups * int(transfer.block_pages)

    def _load_pools(self, wanted: list[tuple[Pool, list[str], Any]]) -> list[list[bool]]:
        batches = [(pool, pool.to_load(keys, rows)) for pool, keys, rows in wanted]
        results = self._load_all(batches)
        for (pool, _, rows), (_, pages), loaded in zip(wanted, batches, results, strict=True):
            pool.take_in(pages, rows, loaded)
        return results

    def _store_pools(self, wanted: list[tuple[Pool, list[str], Any]]) -> list[list[bool]]:
        return self._store_all([(pool, pool.to_store(keys, rows)) for pool, keys, rows in wanted])

    def _load_all(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        started_s = time.perf_counter()
        results = self._store.load(batches)
        self._metrics.note_loads([pages for _, pages in batches], time.perf_counter() - started_s)
        return results

    def _store_all(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        started_s = time.perf_counter()
        results = self._store.store(batches)
        self._metrics.note_stores([pages for _, pages in batches], time.perf_counter() - started_s)
        return results


def _ends_of_windows(is_stored: list[bool], window: int) -> set[int]:
    """Return the lengths of prefixes whose last pages, as many as a window has, are stored."""
    ends = set()
    run = 0
    for position, stored in enumerate(is_stored):
        run = run + 1 if stored else 0
        if run >= min(window, position + 1):
            ends.add(position + 1)
    return ends
