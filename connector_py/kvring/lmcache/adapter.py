"""The adapter between LMCache's L2 controllers and a kvring store."""

import logging
import re
from types import MappingProxyType
from typing import Any, Final

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import EncodedObjectKey, KeyEntry, KeyListPage, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from kvring._native import (
    ClosedError,
    ConfigError,
    ObjectTasks,
    SubmitError,
    options,
    qualified,
    salt_of,
)
from kvring.connector import Connector
from kvring.engine_store import close_store, identity_of
from kvring.lmcache import reconfiguration
from kvring.lmcache.bookkeeping import Bookkeeping
from kvring.lmcache.fixed_buffers import register_l1
from kvring.lmcache.known_weights import KnownWeights
from kvring.lmcache.status import report
from kvring.lmcache.variants import Variants
from kvring.lmcache.versions import local_storage_tags

__all__ = ["KvringL2Adapter", "KvringL2AdapterConfig"]

_logger: Final = logging.getLogger(__name__)

# Not a failure of the store: LMCache stores faster than the disk takes it.
_QUEUE_FULL: Final = "queue_full"

# It fits into 64 bits.
_CURSOR: Final = re.compile(r"[0-9]{1,19}")


class KvringL2AdapterConfig(L2AdapterConfigBase):
    """The options of a store, as `adapter_params` has them."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> "KvringL2AdapterConfig":
        """Take `adapter_params`; the store refuses what does not fit when it is opened."""
        return cls(dict(d))

    @classmethod
    def help(cls) -> str:
        """Tell every option."""
        lines = [f"- {name}: {one['meaning']}" for name, one in options().items()]
        return "\n".join(["kvring's options (adapter_params):", *lines])


class KvringL2Adapter(L2AdapterInterface):
    """A kvring store as LMCache's controllers ask for it (`l2_adapters/base.py` of LMCache 0.5.6).

    What is stored is LMCache's to see: keys that were there before it started, and those that
    kvring evicts or expires, reach its usage, its listeners and its event bus.
    """

    def __init__(
        self,
        config: KvringL2AdapterConfig | dict[str, Any],
        l1_memory_desc: Any = None,
    ) -> None:
        """Open the store, and register LMCache's L1 memory with it.

        Args:
            config: The options; see `kvring.options()`.
            l1_memory_desc: LMCache's L1MemoryDesc, where there is one.

        Raises:
            KvRingError: As `kvring.Connector` does.
            OSError: Likewise.
        """
        named = config.options if isinstance(config, KvringL2AdapterConfig) else config
        if "shared_tier" in named:
            text = 'option \'shared_tier\' goes with "class_name": "KvringSharedL2Adapter"'
            raise ConfigError(text)
        self._store = Connector(**named)
        identity = identity_of(named)
        self._before_own = qualified(identity, "")
        self._weights = KnownWeights(self._store.epoch)
        self._variants = Variants(identity, self._weights)
        self._loading: dict[int, list[ObjectKey]] = {}
        self._store_error = ""
        try:
            super().__init__(max_capacity_bytes=self._store.stats()["capacity_bytes"])
            self._l1 = register_l1(self._store, l1_memory_desc)
            self._tasks = ObjectTasks(self._store, Bitmap, ObjectKey)
            self._event_fds = self._tasks.event_fds()
            self._books = Bookkeeping(
                self._tasks,
                self._notify_keys_stored,
                self._notify_keys_accessed,
                self._notify_keys_deleted,
            )
        except BaseException:
            self._store.close()
            raise

    def get_store_event_fd(self) -> int:
        """Return the descriptor that is readable when a store has completed."""
        return self._event_fds[0]

    def get_lookup_and_lock_event_fd(self) -> int:
        """Return the descriptor that is readable when a lookup has completed."""
        return self._event_fds[1]

    def get_load_event_fd(self) -> int:
        """Return the descriptor that is readable when a load has completed."""
        return self._event_fds[2]

    def submit_store_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        """Store memory objects, in their logical lengths; return the task."""
        self._books.begin()
        return self._tasks.submit_store(*self._variants.of_stored(keys, objects))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Take what became of stores."""
        results = {}
        for task, code, error, stored_bytes in self._tasks.pop_stores():
            results[task] = L2StoreResult(code is None, stored_bytes)
            # One without anything to store says nothing of the drive.
            if code != _QUEUE_FULL and (error or stored_bytes):
                self._store_error = error
        return results

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, Any]
    ) -> int:
        """Look keys up and lock those that are stored; the answer is there when this returns.

        A chunk of another dtype, shape, or of other weights is a miss.
        """
        self._books.begin()
        return self._tasks.submit_lookup(keys, self._variants.of_lookup(keys, group_layout_descs))

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """Take the bitmap of a lookup, once."""
        return self._tasks.query_lookup(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Give locks of lookups back."""
        self._tasks.unlock(keys)

    def submit_load_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        """Load into memory objects; return the task."""
        variants = self._variants.of_objects(keys, objects)
        task = self._tasks.submit_load(keys, objects, variants)
        self._loading[task] = keys
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """Take the bitmap of a load, once; None as long as it is under way."""
        bitmap = self._tasks.query_load(task_id)
        if bitmap is not None:
            self._books.note_used(bitmap.gather(self._loading.pop(task_id)))
        return bitmap

    def get_memory_tags(self) -> Any:
        """Return what LMCache 0.5.7 calls a disk of this host."""
        return local_storage_tags()

    def submit_touch(self, keys: list[ObjectKey]) -> None:
        """Count a use of each key: LMCache has it in L1."""
        self._tasks.touch(keys)
        self._books.note_used(keys)

    def register_listener(self, listener: Any) -> None:
        """Let a listener hear which keys are stored, used and gone, those stored now first."""
        self._books.add_listener(listener, super().register_listener)

    def delete(self, keys: list[ObjectKey]) -> None:
        """Delete keys; those that a lookup has locked stay, or whose path refuses it."""
        if not keys:
            return
        were_stored: list[bool | None] = [None] * len(keys)
        try:
            were_stored = self._tasks.delete(keys)
        except ClosedError:
            raise
        except SubmitError as error:
            # LMCache's thread that evicts would end. Log and status have the reason already.
            _logger.debug("%s", error)
        self._books.tell()
        self._books.tell_absent(
            [key for key, was in zip(keys, were_stored, strict=True) if was is False]
        )

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """List stored keys, of one model or of all.

        Args:
            model_name: Only keys of this model.
            page_size: Most entries of the page.
            cursor: `next_page_token` of the page before; None for the first one.

        Returns:
            The page. Keys that are stored or removed meanwhile may be missing.

        Raises:
            ValueError: page_size is not positive, or cursor is not one of ours.
        """
        if page_size <= 0:
            raise ValueError(f"page_size = {page_size} is not valid; it takes 1 or more")
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise ValueError(f"cursor = {cursor!r} is not one that this adapter has given out")
        listed, following = self._tasks.list_keys(model_name, int(cursor or "0"), page_size)
        entries = tuple(
            KeyEntry(EncodedObjectKey(*fields), size_bytes) for *fields, size_bytes in listed
        )
        return KeyListPage(entries, None if following is None else str(following))

    def get_usage(self) -> AdapterUsage:
        """Return what chunks take of the capacity, rounding to blocks included, by cache salt.

        Only those that LMCache is told of: it could make no room among others.
        """
        by_salt: dict[str, int] = {}
        for namespace, usage in self._usage().items():
            # Keys that are not of LMCache's form have none.
            if not namespace or not namespace.startswith(self._before_own):
                continue
            salt = salt_of(namespace)
            by_salt[salt] = by_salt.get(salt, 0) + usage["allocated_bytes"]
        return AdapterUsage(
            total_bytes_used=sum(by_salt.values()),
            total_capacity_bytes=self._capacity_bytes(),
            bytes_by_cache_salt=MappingProxyType(
                {salt: used_bytes for salt, used_bytes in by_salt.items() if used_bytes > 0}
            ),
        )

    def reconfigure_status(self) -> Any:
        """Tell which limits can be changed while the store is open, and what they are now."""
        return reconfiguration.status(self._store)

    def reconfigure(
        self, operation: str, payload: dict[str, object], *, device_owners: Any
    ) -> dict[str, Any]:
        """Change a limit of the open store.

        Args:
            operation: `resize`, `ttl`, `quotas` or `status`.
            payload: The option of that name and its value; `capacity` of `resize`.
            device_owners: Not needed: no device is added.

        Raises:
            L2ReconfigureError: Nothing has changed.
        """
        del device_owners
        return reconfiguration.reconfigure(self._store, operation, payload)

    def report_status(self) -> dict[str, Any]:
        """Describe the store; "is_healthy" is False while stores or loads fail."""
        status = report(self._store.stats(), self._usage(), self._store_error)
        return {**status, "locked_keys": self._tasks.locked_keys()}

    def close(self) -> None:
        """Finish or drop what is queued, and let go of all memory. Idempotent.

        Raises:
            RuntimeError: A drive does not answer, and the kernel still holds some of L1; LMCache's
                StorageManager closes the L2 adapters first, and then leaves L1 mapped.
        """
        self._weights.close()
        self._books.close()
        close_store(self._store, [] if self._l1 is None else [self._l1])

    def _capacity_bytes(self) -> int:
        try:
            by_path: dict[str, int] = self._store.limits()["capacity_bytes"]
            return sum(by_path.values())
        except ClosedError:
            return int(self._max_capacity_bytes)

    def _usage(self) -> dict[str, Any]:
        try:
            return self._store.usage()
        except ClosedError:
            # LMCache's meters look once more when it ends.
            return {}
