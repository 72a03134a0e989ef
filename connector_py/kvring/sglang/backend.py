"""The storage backend between SGLang's cache controller and a kvring store."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

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
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from kvring._native import KvRingError
from kvring.engine_store import EngineStore, options_of
from kvring.sglang.figures import Figures
from kvring.sglang.pools import Form, Pages, Pool, memory_of
from kvring.shared_reads import MOST_PAGE_BYTES, Reader, ReadServer

__all__ = ["HiCacheKvring"]

_logger = logging.getLogger(__name__)

_WHERE: Final = "--hicache-storage-backend-extra-config"

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
        self._config = storage_config
        self._options = {
            name: value
            for name, value in (storage_config.extra_config or {}).items()
            if name not in _OF_SGLANG
        }
        self._takes_addresses = bool((storage_config.extra_config or {}).get("interface_v1"))
        self._is_writer: bool = storage_config.is_storage_writer
        self._own: EngineStore | None = None
        self._reader: Reader | None = None
        self._server: ReadServer | None = None
        self._pools: dict[str, Pool] = {}
        self._figures = Figures(is_on=storage_config.enable_storage_metrics)
        try:
            if not self._is_writer:
                self._reader = _reader_of(self._options_of(0))
            elif storage_config.is_mla_model and storage_config.tp_size > 1:
                self._server = ReadServer(self._own_store())
            else:
                self._own_store()
        except BaseException:
            self.close()
            raise

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool whose pages the calls without a pool are about."""
        super().register_mem_pool_host(mem_pool_host)
        self._add(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take another pool of a hybrid model."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(str(host_pool_name), host_pool)

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """Return how many leading pages are stored, and lease them."""
        del extra_info
        return self._leading(self._pools[_KV], keys)

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Load pages into the pool; say of each whether it is there now, whole."""
        del extra_info
        return self._load_pools([(self._pools[_KV], keys, host_indices)])[0]

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Store pages of the pool; say of each whether it is stored."""
        del extra_info
        return self._store_pools([(self._pools[_KV], keys, host_indices)])[0]

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
                possible = _ends_of_windows(self._exists(pool, keys[:pages]), window)
                boundary = max(possible, default=0)
            else:
                text = f"kvring.sglang does not know the hit policy {transfer.hit_policy}"
                raise ValueError(text)
            if boundary:
                hits[transfer.name] = boundary
            restorable = [one for one in restorable if one in possible]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[Any, list[bool]]:
        """Load pages of several pools."""
        del extra_info
        return self._each_pool(self._load_pools, transfers)

    def batch_set_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[Any, list[bool]]:
        """Store pages of several pools."""
        del extra_info
        return self._each_pool(self._store_pools, transfers)

    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """Load one page into a dense tensor on the CPU, which is as long as the page."""
        return self.batch_get([key], [target_location], target_sizes)[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Load pages into tensors."""
        del target_sizes
        tensors = list(target_locations or ())
        pool = self._pools[_KV]
        loaded = self._load([(pool, pool.flat(keys, tensors))])[0]
        return [tensor if ok else None for tensor, ok in zip(tensors, loaded, strict=True)]

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
        return all(self._store([(pool, pool.flat(keys, tensors))])[0])

    def exists(self, key: str) -> bool:
        """Say whether one page is stored, by whichever call."""
        pool = self._pools[_KV]
        return any(self._ask("exists", pool, [key], form) == [True] for form in pool.forms)

    def clear(self) -> bool:
        """Remove all that this rank has stored of this model."""
        if self._own is not None:
            forms = [form for pool in self._pools.values() for form in pool.forms]
            for namespace in {form.namespace for form in forms}:
                self._own.connector.purge(self._own.stored_as(namespace))
        if self._server is not None:
            self._server.forget_all()
        return True

    def get_stats(self) -> Any:
        """Return SGLang's figures of transfers since the last call; None where it wants none."""
        return self._figures.take()

    def close(self) -> None:
        """Finish or drop what is queued, and let go of all memory. Idempotent.

        Raises:
            RuntimeError: The drive does not answer, and the kernel still holds memory of the pools.
        """
        if self._reader is not None:
            self._reader.close()
        if self._server is not None:
            self._server.close()
        if self._own is not None and not self._own.close():
            text = "the drive does not answer; the memory of its transfers must stay"
            raise RuntimeError(f"{self._own.path}: {text}")

    def _add(self, name: str, host_pool: Any) -> None:
        is_shared = self._config.is_mla_model and not _differs_by_rank(name, host_pool)
        pool = Pool(
            name,
            host_pool,
            self._config,
            is_shared=is_shared,
            in_place=self._takes_addresses or name != _KV,
        )
        if (self._is_writer or not is_shared) and name not in self._pools:
            for address, length_bytes in memory_of(host_pool):
                self._own_store().register(address, length_bytes)
        if is_shared and self._config.tp_size > 1 and pool.page_bytes > MOST_PAGE_BYTES:
            _logger.warning(
                "pages of SGLang's pool '%s' have %d bytes, and ranks read pages of up to %d from "
                "each other: none of it will be found; lower --page-size",
                name,
                pool.page_bytes,
                MOST_PAGE_BYTES,
            )
        self._pools[name] = pool

    def _own_store(self) -> EngineStore:
        if self._own is None:
            self._own = EngineStore(_WHERE, self._options_of(self._config.tp_rank))
        return self._own

    def _options_of(self, tp_rank: int) -> dict[str, Any]:
        """Return the options of the store of a rank, which has paths of its own."""
        config = self._config
        paths = self._options.get("path")
        named = [_below(path) for path in (paths if isinstance(paths, list) else [paths])]
        ranks = config.tp_size * config.pp_size * config.attn_cp_size
        for path in named:
            is_shared = ranks > 1 or config.dp_rank > 0
            if isinstance(path, str) and "{rank}" not in path and is_shared:
                text = (
                    f"{_WHERE}: path = {path!r} would be shared by all ranks ({ranks} in a group), "
                    "and a store has one owner; write {rank} in it, and give each device a name "
                    "with its number"
                )
                raise ValueError(text)
        options = dict(self._options)
        if paths is not None:
            options["path"] = named if isinstance(paths, list) else named[0]
        rank = config.dp_rank * config.pp_size + config.pp_rank
        rank = (rank * config.attn_cp_size + config.attn_cp_rank) * config.tp_size + tp_rank
        return options_of(options, "rank", rank)

    def _each_pool(
        self,
        move: Callable[[list[tuple[Pool, list[str], Any]]], list[list[bool]]],
        transfers: list[PoolTransfer],
    ) -> dict[Any, list[bool]]:
        """Move pages of several pools; those that do not fit theirs fail, and the others go on."""
        results: dict[Any, list[bool]] = {}
        wanted = {}
        for transfer in transfers:
            pool, keys = self._pools[str(transfer.name)], transfer.keys or []
            try:
                pool.check(keys, transfer.host_indices)
            except ValueError as error:
                _logger.warning("%s", error)
                results[transfer.name] = [False] * len(keys)
            else:
                wanted[transfer.name] = (pool, keys, transfer.host_indices)
        moved = move(list(wanted.values()))
        return {**results, **dict(zip(wanted, moved, strict=True))}

    def _leading(self, pool: Pool, keys: list[str]) -> int:
        # Without memory of its own it is stored by its sidecars alone.
        if pool.is_logical:
            return len(keys)
        return self._ask("count_leading", pool, keys, pool.form) or 0

    def _exists(self, pool: Pool, keys: list[str]) -> list[bool]:
        return self._ask("exists", pool, keys, pool.form) or [False] * len(keys)

    def _ask(self, what: str, pool: Pool, keys: list[str], form: Form) -> Any:
        if self._is_read_elsewhere(pool):
            return getattr(self._reader, what)(form.prefix, keys, form.parts)
        store = self._own_store()
        try:
            return getattr(store.tasks, what)(form.prefix, keys, form.parts)
        except KvRingError as error:
            store.note(str(error))
            return None

    def _is_read_elsewhere(self, pool: Pool) -> bool:
        return pool.is_shared and self._reader is not None

    def _load_pools(self, wanted: list[tuple[Pool, list[str], Any]]) -> list[list[bool]]:
        batches = [(pool, pool.to_load(keys, rows)) for pool, keys, rows in wanted]
        results = self._load(batches)
        for (pool, _, rows), (_, pages), loaded in zip(wanted, batches, results, strict=True):
            pool.take_in(pages, rows, loaded)
        return results

    def _load(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        started_s = time.perf_counter()
        # All of them, before one is waited for.
        tasks = [self._start("load", pool, pages) for pool, pages in batches]
        results = []
        for (pool, pages), task in zip(batches, tasks, strict=True):
            if self._reader is not None and pool.is_shared and not pool.is_logical:
                request = (pages.form.prefix, pages.keys, pages.addresses, pages.lengths_bytes)
                results.append(self._reader.load(*request))
            else:
                results.append(self._finish(task, pool, pages))
        self._figures.note_loads([pages for _, pages in batches], time.perf_counter() - started_s)
        return results

    def _store_pools(self, wanted: list[tuple[Pool, list[str], Any]]) -> list[list[bool]]:
        return self._store([(pool, pool.to_store(keys, rows)) for pool, keys, rows in wanted])

    def _store(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        started_s = time.perf_counter()
        keys = [key for _, pages in batches for key in pages.keys]
        if self._server is not None:
            self._server.forget(keys)
        tasks = [self._start("store", pool, pages) for pool, pages in batches]
        results = [
            self._finish(task, pool, pages)
            for (pool, pages), task in zip(batches, tasks, strict=True)
        ]
        if self._server is not None:
            # Once more: a reader may have had the older ones loaded meanwhile.
            self._server.forget(keys)
        self._figures.note_stores([pages for _, pages in batches], time.perf_counter() - started_s)
        return results

    def _start(self, what: str, pool: Pool, pages: Pages) -> int | None:
        if pool.is_logical or self._is_read_elsewhere(pool):
            return None
        store = self._own_store()
        request = (pages.form.prefix, pages.keys, pages.addresses, pages.lengths_bytes)
        try:
            return store.tasks.load(*request) if what == "load" else store.tasks.store(*request)
        except KvRingError as error:
            store.note(str(error))
            return None

    def _finish(self, task: int | None, pool: Pool, pages: Pages) -> list[bool]:
        if task is None:
            return [pool.is_logical] * len(pages.keys)
        store = self._own_store()
        try:
            _, results, error, _ = store.tasks.wait(task)
        except KvRingError as refusal:
            results, error = [False] * len(pages.keys), str(refusal)
        store.note(error)
        return results


def _reader_of(options: dict[str, Any]) -> Reader:
    """Read the store with these options, which another rank owns."""
    paths, index_path = options.get("path"), options.get("index_path") or "none"
    path = paths[0] if isinstance(paths, list) and paths else paths
    if not isinstance(path, str):
        text = f"{_WHERE}: 'path' is needed, such as /mnt/nvme/kvring"
        raise ValueError(text)
    beside = None if index_path == "none" else Path(index_path).expanduser()
    return Reader(Path(path).expanduser(), beside)


def _differs_by_rank(name: str, host_pool: Any) -> bool:
    """Say whether each rank of an MLA model has other bytes in a pool."""
    # As SGLang decides for Mooncake (should_backup in hybrid_cache_controller.py).
    is_draft = name in (PoolName.DRAFT, PoolName.DRAFT_SWA)
    return name == PoolName.MAMBA or (is_draft and isinstance(host_pool, MHATokenToKVPoolHost))


def _below(path: Any) -> Any:
    """Give each rank a directory of its own below a path; a device has none."""
    if isinstance(path, str) and "{rank}" not in path and not Path(path).is_block_device():
        return f"{path.rstrip('/')}/rank-{{rank}}"
    return path


def _ends_of_windows(is_stored: list[bool], window: int) -> set[int]:
    """Return the lengths of prefixes whose last pages, as many as a window has, are stored."""
    ends = set()
    run = 0
    for position, stored in enumerate(is_stored):
        run = run + 1 if stored else 0
        if run >= min(window, position + 1):
            ends.add(position + 1)
    return ends
