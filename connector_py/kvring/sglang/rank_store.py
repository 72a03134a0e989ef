"""What a rank stores into and loads from: its own store, or that of the rank that writes for it."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from kvring._native import KvRingError, MemoryTasks
from kvring.engine_store import EngineStore
from kvring.ranks import SEGMENT_BYTES, Reader, ReadServer, taken_bytes
from kvring.sglang.pools import Form, Pages, Pool, memory_of
from kvring.sglang.ranks import WHERE, options_of_rank, reader_of

__all__ = ["RankStore"]

_logger = logging.getLogger(__name__)

# Between tries to open a store.
_PAUSE_S: Final = 60.0

_Answer = TypeVar("_Answer")


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
        # Of all below, while it is opened or closed.
        self._lock = threading.Lock()
        # Of pools whose pages this rank moves itself: addresses and lengths.
        self._memory: list[tuple[int, int]] = []
        self._next_try_s = 0.0
        self._is_closed = False
        if not config.is_storage_writer:
            self._reader = reader_of(options_of_rank(config, options, 0))
            return
        self._own = self._open()
        try:
            if config.is_mla_model and config.tp_size > 1:
                self._server = ReadServer(self._own)
        except BaseException:
            self.close()
            raise

    def register(self, pool: Pool, host_pool: Any) -> None:
        """Register the memory of a pool whose pages this rank moves itself."""
        if self._reader_of(pool) is None:
            memory = list(memory_of(host_pool))
            own = self._opened()
            # A store that is opened later takes it then.
            self._memory += memory
            if own is not None:
                for address, length_bytes in memory:
                    own.register(address, length_bytes)
        if pool.is_replicated and self._config.tp_size > 1 and not pool.is_logical:
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
        without = [False] * len(keys)
        return self._asked(pool, lambda one: one.exists(form.prefix, keys, form.parts), without)

    def count_leading(self, pool: Pool, keys: list[str]) -> int:
        """Return how many leading pages are stored, and lease them."""
        form = pool.form
        return self._asked(pool, lambda one: one.count_leading(form.prefix, keys, form.parts), 0)

    def load(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        """Load pages; say of each whether it is there now, whole."""
        # All of them, before one is waited for.
        tasks = [self._start(pool, pages, is_load=True) for pool, pages in batches]
        return [
            self._finish(task, pool, pages, self._reader_of(pool))
            for (pool, pages), task in zip(batches, tasks, strict=True)
        ]

    def store(self, batches: list[tuple[Pool, Pages]]) -> list[list[bool]]:
        """Store pages; say of each whether it is stored."""
        keys = [key for _, pages in batches for key in pages.keys]
        if self._server is not None:
            self._server.forget(keys)
        tasks = [self._start(pool, pages, is_load=False) for pool, pages in batches]
        results = [
            self._finish(task, pool, pages, None)
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

    def close(self) -> None:
        """Finish or drop what is queued, and let go of all memory. Idempotent.

        Raises:
            RuntimeError: The drive does not answer, and the kernel still holds memory of the pools.
        """
        if self._reader is not None:
            self._reader.close()
        if self._server is not None:
            self._server.close()
        with self._lock:
            self._is_closed = True
        if self._own is not None:
            self._own.close()

    def _open(self) -> EngineStore:
        options = options_of_rank(self._config, self._options, self._config.tp_rank)
        return EngineStore(WHERE, options)

    def _opened(self) -> EngineStore | None:
        """Return this rank's own store; None as long as it cannot be opened.

        That of a reader is opened when it is needed, and again some time after a failure: the
        pools that it reads from the first rank need none.
        """
        # One that another thread is opening is not waited for.
        if not self._lock.acquire(blocking=False):
            return self._own
        try:
            if self._own is None and not self._is_closed and time.monotonic() >= self._next_try_s:
                own = self._open()
                for address, length_bytes in self._memory:
                    own.register(address, length_bytes)
                self._own = own
        except (KvRingError, OSError, ValueError) as error:
            self._next_try_s = time.monotonic() + _PAUSE_S
            _logger.warning(
                "rank %d: its own store cannot be opened, and its pools that differ by rank are "
                "not stored or loaded until it can (next try in %d s): %s",
                self._config.tp_rank,
                _PAUSE_S,
                error,
            )
        finally:
            self._lock.release()
        return self._own

    def _reader_of(self, pool: Pool) -> Reader | None:
        return self._reader if pool.is_replicated else None

    def _asked(
        self, pool: Pool, ask: Callable[[Reader | MemoryTasks], _Answer], without: _Answer
    ) -> _Answer:
        reader = self._reader_of(pool)
        if reader is not None:
            return ask(reader)
        own = self._opened()
        if own is None:
            return without
        try:
            return ask(own.tasks)
        except KvRingError as error:
            own.note_refusal(error)
            return without

    def _start(self, pool: Pool, pages: Pages, *, is_load: bool) -> int | None:
        """Submit pages; None if they are not the store's, or it does not take them.

        Raises nothing: what others have submitted would go on, into memory that SGLang uses again.
        """
        if pool.is_logical or self._reader_of(pool) is not None:
            return None
        own = self._opened()
        if own is None:
            return None
        try:
            return (own.tasks.load if is_load else own.tasks.store)(*pages.request)
        except Exception as error:  # noqa: BLE001
            own.note_refusal(error)
            return None

    def _finish(
        self, task: int | None, pool: Pool, pages: Pages, reader: Reader | None
    ) -> list[bool]:
        """Wait for what `_start` submitted, or load by a reader. Raises nothing, as `_start`."""
        if pool.is_logical:
            # It is stored by its sidecars alone.
            return [True] * len(pages.keys)
        results = [False] * len(pages.keys)
        try:
            if reader is not None:
                return reader.load(*pages.request)
            if task is None or self._own is None:
                return results
            _, results, code, error, _ = self._own.tasks.wait(task)
            self._own.note(code, error)
        except Exception as refusal:  # noqa: BLE001
            if self._own is not None:
                self._own.note_refusal(refusal)
        return results
