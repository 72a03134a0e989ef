"""What a rank stores into and loads from: its own store, or that of the rank that writes for it."""

import logging
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from kvring._native import KvRingError, MemoryTasks
from kvring.engine_store import EngineStore
from kvring.sglang.pools import Form, Pages, Pool, memory_of
from kvring.sglang.ranks import WHERE, options_of_rank, reader_of
from kvring.shared_reads import SEGMENT_BYTES, Reader, ReadServer, taken_bytes

__all__ = ["RankStore"]

_logger = logging.getLogger(__name__)


class RankStore:
    """The stores of a rank. Pools that are the same on all ranks have one, the first rank's.

    A rank that reads from there has a store of its own as soon as it has a pool that differs.
    """

    def __init__(self, config: HiCacheStorageConfig, options: dict[str, Any]) -> None:
        """Open the store of this rank, or find that of the rank that writes for it.

        Raises:
            ValueError: An option cannot be used; the message names it.
            KvRingError: As `kvring.Connector` does.
            OSError: Likewise.
        """
        self._config = config
        self._options = options
        self._own: EngineStore | None = None
        self._reader: Reader | None = None
        self._server: ReadServer | None = None
        try:
            if not config.is_storage_writer:
                self._reader = reader_of(options_of_rank(config, options, 0))
            elif config.is_mla_model and config.tp_size > 1:
                self._server = ReadServer(self._opened())
            else:
                self._opened()
        except BaseException:
            self.close()
            raise

    def register(self, pool: Pool, host_pool: Any) -> None:
        """Register the memory of a pool whose pages this rank moves itself."""
        if self._reader_of(pool) is None:
            for address, length_bytes in memory_of(host_pool):
                self._opened().register(address, length_bytes)
        if pool.is_shared and self._config.tp_size > 1 and not pool.is_logical:
            lengths_bytes = pool.part_lengths_bytes()
            if taken_bytes(lengths_bytes) > SEGMENT_BYTES:
                _logger.warning(
                    "pages of SGLang's pool '%s' have %d bytes, and ranks read pages of up to %d "
                    "from each other: none of it will be found; lower --page-size",
                    pool.name,
                    sum(lengths_bytes),
                    SEGMENT_BYTES,
                )

    def exists(self, pool: Pool, keys: list[str], form: Form) -> list[bool]:
        """Say of each page whether it is stored, and lease it."""
        try:
            return self._asked(pool).exists(form.prefix, keys, form.parts)
        except KvRingError as error:
            self._opened().note(str(error))
            return [False] * len(keys)

    def count_leading(self, pool: Pool, keys: list[str]) -> int:
        """Return how many leading pages are stored, and lease them."""
        try:
            return self._asked(pool).count_leading(pool.form.prefix, keys, pool.form.parts)
        except KvRingError as error:
            self._opened().note(str(error))
            return 0

    def load(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        """Load pages; say of each whether it is there now, whole."""
        # All of them, before one is waited for.
        tasks = [self._start(pool, pages, is_load=True) for pool, pages in batches]
        results = []
        for (pool, pages), task in zip(batches, tasks, strict=True):
            reader = self._reader_of(pool)
            if reader is None or pool.is_logical:
                results.append(self._finish(task, pool, pages))
            else:
                results.append(reader.load(*pages.request))
        return results

    def store(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        """Store pages; say of each whether it is stored."""
        keys = [key for _, pages in batches for key in pages.keys]
        if self._server is not None:
            self._server.forget(keys)
        tasks = [self._start(pool, pages, is_load=False) for pool, pages in batches]
        results = [
            self._finish(task, pool, pages)
            for (pool, pages), task in zip(batches, tasks, strict=True)
        ]
        if self._server is not None:
            # Once more: a reader may have had the older ones loaded meanwhile.
            self._server.forget(keys)
        return results

    def clear(self, namespaces: set[str]) -> None:
        """Remove what this rank has stored in these namespaces."""
        if self._own is not None:
            for namespace in namespaces:
                self._own.connector.purge(self._own.stored_as(namespace))
        if self._server is not None:
            self._server.forget_all()

    def close(self) -> None:
        """Finish or drop what is queued, and let go of all memory. Idempotent.

        Raises:
            RuntimeError: The drive does not answer, and the kernel still holds memory of the pools.
        """
        if self._reader is not None:
            self._reader.close()
        if self._server is not None:
            self._server.close()
        if self._own is not None:
            self._own.close()

    def _opened(self) -> EngineStore:
        if self._own is None:
            options = options_of_rank(self._config, self._options, self._config.tp_rank)
            self._own = EngineStore(WHERE, options)
        return self._own

    def _reader_of(self, pool: Pool) -> Reader | None:
        return self._reader if pool.is_shared else None

    def _asked(self, pool: Pool) -> Reader | MemoryTasks:
        return self._reader_of(pool) or self._opened().tasks

    def _start(self, pool: Pool, pages: Pages, *, is_load: bool) -> int | None:
        if pool.is_logical or self._reader_of(pool) is not None:
            return None
        store = self._opened()
        try:
            return (store.tasks.load if is_load else store.tasks.store)(*pages.request)
        except KvRingError as error:
            store.note(str(error))
            return None

    def _finish(self, task: int | None, pool: Pool, pages: Pages) -> list[bool]:
        if task is None:
            # A pool without memory is stored by its sidecars alone.
            return [pool.is_logical] * len(pages.keys)
        store = self._opened()
        try:
            _, results, error, _ = store.tasks.wait(task)
        except KvRingError as refusal:
            results, error = [False] * len(pages.keys), str(refusal)
        store.note(error)
        return results
