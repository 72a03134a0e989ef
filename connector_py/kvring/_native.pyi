"""The native part of kvring."""

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, final

from typing_extensions import Self, disjoint_base

from kvring.arguments import Capacities, Memory, Paths

__all__ = [
    "ANY_VARIANT",
    "FAILURE_CODES",
    "BenchPlan",
    "BenchRun",
    "BlockingStore",
    "ClosedError",
    "ConfigError",
    "Connector",
    "EngineError",
    "FormatError",
    "InUseError",
    "KeyWatch",
    "KvRingError",
    "MemoryTasks",
    "NotFormattedError",
    "ObjectTasks",
    "RegisteredMemory",
    "StoredChunks",
    "SubmitError",
    "__version__",
    "bench_options",
    "build_info",
    "check_options",
    "checksum_with_key",
    "engine_namespace",
    "forecast_open",
    "format_device",
    "is_of_model",
    "object_key_text",
    "options",
    "part_key",
    "put_into_huge_pages",
    "qualified",
    "rank_prefix",
    "salt_of",
    "size_bytes",
]

__version__: Final[str]

_FailureCode: TypeAlias = Literal[
    "queue_full",
    "no_space",
    "quota_full",
    "too_long",
    "collision",
    "unavailable",
    "io",
    "closed",
    "abandoned",
]

# Of a chunk whose owner vouches that it is what anybody asks for under its key.
ANY_VARIANT: Final[int]
FAILURE_CODES: Final[tuple[_FailureCode, ...]]
"""Codes of failed batches; docs/reference/errors.md has the action for each."""

class KvRingError(Exception):
    """Base of every error of kvring, except OSError."""

class ConfigError(KvRingError):
    """An option is unknown, missing or out of range, or no store can be at a path."""

class InUseError(KvRingError):
    """Another live connector has the store open, or a program has the block device.

    The message names the process and its host.
    """

class FormatError(KvRingError):
    """A newer kvring wrote the store, which is left unchanged."""

class NotFormattedError(KvRingError):
    """The block device holds foreign data, which is left unchanged."""

class EngineError(KvRingError):
    """The I/O engine cannot start; the message has the cause."""

class SubmitError(KvRingError):
    """A batch is refused as a whole, and nothing of it is queued; or keys are not removed."""

    position: int | None
    """Position of the wrong key or buffer in the batch, from 0 on; None if none is wrong."""

class ClosedError(SubmitError):
    """The connector is closed."""

def build_info() -> dict[str, str | int | None]:
    """Return facts of this build.

    Returns:
        `version`, `commit` or None, `compiler`, `target`, `profile`, `format_version`,
        `device_format_version`.
    """

def options() -> dict[str, dict[str, str | None]]:
    """Return every option of a store by name: `unit`, `default`, `range`, `meaning`."""

def check_options(path: Paths, capacity: Capacities, **options: Any) -> None:
    """Read options as Connector does, look at what the paths are, and open nothing.

    A device that is not there may be one of another machine.

    Raises:
        ConfigError: As of Connector, but for what only the content of the path tells.
    """

def size_bytes(text: str) -> int:
    """Read a number of bytes, such as "500GiB", as every option that is a size does.

    Raises:
        ConfigError: It cannot be read.
    """

def checksum_with_key(key: str, memory: Memory) -> int:
    """Return the CRC-64/NVME of a key and of the bytes behind it.

    Raises:
        BufferError: The memory is not contiguous.
        TypeError: It is no buffer.
    """

def object_key_text(
    model_name: str,
    kv_rank: int,
    object_group_id: int,
    chunk_hash: bytes,
    cache_salt: str = "",
) -> str:
    """Return an object key of LMCache as its native connectors write it."""

def engine_namespace(engine: str, digest: str, model: str) -> str:
    """Return the namespace of what an engine stores: the digest of its layout, and the model."""

def rank_prefix(namespace: str, rank: int) -> str:
    """Return what the keys of a namespace and a rank begin with; see `MemoryTasks`."""

def part_key(prefix: str, part: int, key: str) -> str:
    """Return the key of one part of what an engine stores."""

def qualified(identity: str | None, text: str) -> str:
    """Return a key, or a namespace, of an identity as it is stored; `text` without an identity."""

def is_of_model(namespace: str, model: str) -> bool:
    """Say whether a namespace is of a model, whatever its identity, its salt, or the engine."""

def salt_of(namespace: str) -> str:
    """Return the cache salt of a namespace, or ""."""

def put_into_huge_pages(descriptor: int, length_bytes: int) -> None:
    """Take memory for a file of memory (`os.memfd_create`), in huge pages.

    Drives move huge pages in few long transfers. Pages of 4 KiB that lie here and there take one
    each.

    Args:
        descriptor: The file, with its length set already.
        length_bytes: How much of it, from its begin.

    Raises:
        OSError: The kernel has none, or is older than Linux 6.1. Whatever memory was taken stays.
        ValueError: `length_bytes` is 0.
    """

def forecast_open(path: Paths, capacity: Capacities, **options: Any) -> list[dict[str, Any]]:
    """Compute what an open with these options would remove from each path, from its files.

    Nothing is changed or locked. Where a path has no store yet, `moved` of the others is an
    estimate.

    Args:
        path: As of `Connector`, as all others.
        capacity: As of `Connector`.
        **options: As of `Connector`.

    Returns:
        Of each path `path`, `is_new`, and pairs of a number of chunks and their bytes: `stored`,
        and what would be removed of that: `beyond_capacity`, `expired`, `moved`, `stale`.

    Raises:
        ConfigError: An option is wrong.
        FormatError: The store was written by a newer kvring.
        KvRingError: An index is damaged, or missing beside data.
        OSError: A path cannot be read.
    """

def format_device(
    path: str | os.PathLike[str], discard: bool, agree: Callable[[str], bool]
) -> bool:
    """Make a block device blank, so that the next open makes a store there.

    Args:
        path: The block device.
        discard: Whether all of it is discarded, where it can be.
        agree: Told what the device holds, while nobody else can have it; nothing is written if it
            returns False.

    Returns:
        What `agree` returned.

    Raises:
        ConfigError: It is no block device, read-only or too short.
        KvRingError: It holds a store.
        InUseError: Another live connector, or something else, has it.
        FormatError: It holds a store of a newer kvring.
        OSError: It cannot be opened, read or written.
    """

@disjoint_base
class Connector:
    """A store with batches and completions. LMCache's native_plugin adapter loads this class.

    A submit queues a batch, without blocking, and returns a future id. Its completion arrives once,
    from `drain_completions()`.

    - Keys and memory are those of `Store`. Memory is held until its completion is drained.
    - A chunk that is too long fails alone. A wrong key or buffer raises SubmitError with its
      `position`, and nothing is queued.
    - A GET sees every SET that was answered before its submit. SETs and DELETEs of one key keep
      their order.
    - The content of a buffer whose key was answered False is undefined.
    - Loads have priority: SETs wait for loads up to about 1 s.
    - A store has one owner. In a fork every call is refused.
    - An exit without `close()` is like a crash: no completed operation is lost.
    - After `close()` calls raise ClosedError, except those of statistics, epochs and completions.
    """

    def __new__(cls, path: Paths, capacity: Capacities, **options: Any) -> Self:
        """Open the store at `path`, or at several paths that share its keys.

        Args:
            path: Directory or block device, or a list of up to 30 of them.
            capacity: Maximum bytes on disk at each path: a number, a string such as "500GiB", "all"
                of a block device, or a list with one for each path.
            **options: See `kvring.options()`.

        Raises:
            KvRingError: docs/reference/errors.md has all reasons ("Why an open fails"), and their
                classes.
            OSError: A system call failed.
        """

    def event_fd(self) -> int:
        """Return the descriptor that is readable while completions wait."""

    def submit_batch_set(
        self,
        keys: list[str],
        memoryviews: Sequence[Memory],
        *,
        variants: Sequence[int] | None = None,
    ) -> int:
        """Store chunks: True per key that is stored, has these bytes already, or is not admitted.

        A batch beyond `set_queue_bytes` or 131,072 keys fails with "queue_full", if others are
        queued. `variants`: docs/how-to/weights.md.
        """

    def submit_batch_get(self, keys: list[str], memoryviews: Sequence[Memory]) -> int:
        """Load chunks: True per key whose buffer, of exactly its length, holds the chunk."""

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Look keys up: True per stored key, which is leased for `lease_s`."""

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Remove keys: True per key, as it is absent now."""

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """Return new completions: future id, ok, error text, and one bool per key."""

    def drain_coded_completions(
        self,
    ) -> list[tuple[int, _FailureCode | None, str, list[bool]]]:
        """Return the same, with a code of `FAILURE_CODES` instead of ok; None on success."""

    def close(self, timeout_s: float = 20.0, drain_s: float | None = None) -> dict[str, Any]:
        """Finish the queue, make all durable, and close the store, in `timeout_s` plus 1 s at most.

        `drain_s` of that, by default half, is for the queue, whose rest is dropped.

        Returns:
            `shutdown_clean`; `partial_flush`, `abandoned`: operations dropped; `memory_held`: the
            kernel has buffers, which must stay mapped; `timed_out`: threads continue, and keep the
            store locked; `not_durable`: SETs and removals that power loss may undo.
        """

    @property
    def metrics_port(self) -> int | None:
        """Option `metrics_port`; None if it is off."""

    @property
    def recovery(self) -> dict[str, Any]:
        """Result of the open (docs/reference/metrics.md)."""

    def stats(self) -> dict[str, Any]:
        """Return state and counters (docs/reference/metrics.md)."""

    def latency_histograms(
        self,
    ) -> list[tuple[str, str, list[tuple[int, int]], int, int]]:
        """Return class, phase, cumulative buckets, count and sum of latencies, in us."""

    def counters(self) -> dict[str, dict[str, int]]:
        """Return counters in groups (docs/reference/metrics.md)."""

    def submit_batch_prefix(self, keys: list[str]) -> int:
        """Look keys up: True for the leading stored keys, which are leased together."""

    def set_epoch(self, name: str) -> None:
        """Begin an epoch of weights under one model name (docs/how-to/weights.md)."""

    def epoch(self) -> int:
        """Return the fingerprint of the current epoch."""

    def pin(self, keys: list[str]) -> list[bool]:
        """Keep stored keys until `unpin()`, a DELETE or `close()`; return which are pinned.

        Pins cover at most half of the capacity and of the index.
        """

    def unpin(self, keys: list[str]) -> list[bool]:
        """Remove pins; return which keys were pinned."""

    def touch(self, keys: list[str]) -> list[bool]:
        """Count a use of keys that a tier above serves; return which are stored."""

    def usage(self) -> dict[str, dict[str, int | None]]:
        """Return space by namespace: `model` or `model@salt`, after `identity#` if set.

        Returns:
            `keys`, `allocated_bytes`, `writing_keys`, `remembered_keys`, `quota_bytes` or None.
        """

    def keys(
        self, namespace: str, cursor: int = 0, limit: int = 1000
    ) -> tuple[list[tuple[str, str]], int | None]:
        """List at least `limit` keys of a namespace, if there are as many, from `cursor` on.

        Returns:
            Pairs of key and state ("stored" or "writing"), and the next cursor or None.
        """

    def register_memory(
        self, memory: Memory | int, length_bytes: int | None = None
    ) -> RegisteredMemory:
        """Register memory until `close()` of the result: transfers in it need no page pinning.

        It counts against RLIMIT_MEMLOCK. Memory by address must stay mapped.
        """

    def purge(self, namespace: str) -> dict[str, Any]:
        """Remove stored and queued keys of a namespace, named as in `usage()`.

        It waits for the index file.

        Returns:
            `keys` and payload `bytes` removed, and the `pinned` keys, which stay.

        Raises:
            SubmitError: The index file refuses; a restart may bring keys back.
        """

    def change_limits(
        self,
        *,
        capacity: Capacities | None = None,
        ttl: float | str | None = None,
        quotas: Mapping[str, int | str] | None = None,
    ) -> None:
        """Change limits until the next open; evict what is beyond them in the background.

        Several capacities keep their ratio. "none" removes a quota.
        """

    def limits(self) -> dict[str, Any]:
        """Return `capacity_bytes` by path, `ttl_s` or None, and `quota_bytes` by namespace."""

    def expire(self) -> int:
        """Remove chunks past `ttl` now; return their number."""

    def check(self) -> dict[str, Any]:
        """Cross-check index, eviction order, namespaces and space.

        Returns:
            `keys`, `stored_bytes`, `moving_bytes`, `reserved_bytes`, and a list of `problems`.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None = None,
        exception: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@disjoint_base
class KeyWatch:
    """The keys of a connector as they come and go, in the form that they have in the store."""

    def watch_keys(self) -> int:
        """Note which keys come and go from now on; return how many are stored and not told yet."""

    def take_stored_keys(self, limit: int) -> tuple[list[str], list[int]]:
        """Take up to `limit` keys that were stored when watching began.

        Returns:
            The least recently used ones of those that are left, in this order, and the lengths of
            their chunks in bytes; fewer than `limit` at the end.
        """

    def take_key_events(self, limit: int) -> list[tuple[str, list[str], list[int]]]:
        """Take up to `limit` changes of keys since watching began.

        Returns:
            Runs of "stored", "stored again" (the same bytes) or "gone", with keys and the lengths
            of their chunks; the changes of one key in order.
        """

@final
class ObjectTasks(KeyWatch):
    """A connector as LMCache's L2 adapters are asked: tasks with object keys and memory objects.

    Stores, lookups and loads have a descriptor each, which is readable when one has completed.
    Whoever polls it clears it, and asks for results then. A store or a load keeps its memory
    objects until its result was taken, or the connector was closed.

    Every method raises ClosedError after `Connector.close()`, but for those that take results, and
    SubmitError for what a connector's submits refuse.
    """

    def __new__(cls, connector: Connector, bitmap: type[Any], object_key: type[Any]) -> Self:
        """Take a connector over: its completions are taken here from now on.

        Args:
            connector: Open, and used by nobody else.
            bitmap: LMCache's class Bitmap.
            object_key: LMCache's class ObjectKey.

        Raises:
            OSError: The process has no descriptor left.
        """

    def event_fds(self) -> tuple[int, int, int]:
        """Return the descriptors to poll for stores, lookups and loads."""

    def submit_store(
        self, keys: Sequence[Any], objects: Sequence[Any], variants: Sequence[int] | None = None
    ) -> int:
        """Store memory objects, in their logical lengths; return the task.

        `variants` are 32-bit fingerprints of what the bytes mean beyond their keys.
        """

    def pop_stores(self) -> list[tuple[int, _FailureCode | None, str, int]]:
        """Take what became of stores: task, code (None if all succeeded), error, bytes stored."""

    def submit_lookup(
        self, keys: Sequence[Any], variants: Sequence[int | None] | None = None
    ) -> int:
        """Look keys up, lease and lock those that are stored; return the task, which is done.

        A chunk of another variant is a miss; one of None is any.
        """

    def query_lookup(self, task: int) -> Any:
        """Take the bitmap of a lookup; None if there is no such result."""

    def unlock(self, keys: Sequence[Any]) -> None:
        """Give locks of lookups back. After 600 s they count no more."""

    def submit_load(
        self, keys: Sequence[Any], objects: Sequence[Any], variants: Sequence[int] | None = None
    ) -> int:
        """Load into memory objects what has their variants; return the task."""

    def query_load(self, task: int) -> Any:
        """Take the bitmap of a load; None as long as it is under way."""

    def delete(self, keys: Sequence[Any]) -> list[bool | None]:
        """Delete keys that no lookup has locked; waits for the index file, 30 s at most.

        Returns:
            Of each key whether it was stored; None if it is locked, and stays.

        Raises:
            SubmitError: The index of a path took no change, or not in time.
        """

    def touch(self, keys: Sequence[Any]) -> None:
        """Count a use of each key now."""

    def holds(self, keys: Sequence[Any]) -> list[bool]:
        """Say of each key whether it is stored now; unlike a lookup it locks and leases nothing."""

    def object_keys(
        self, keys: Sequence[str], lengths_bytes: Sequence[int]
    ) -> tuple[list[Any], list[int]]:
        """Return object keys for keys as they are stored, and the lengths of their chunks.

        Keys of another form are left out.
        """

    def list_keys(
        self, model: str | None, cursor: int, limit: int
    ) -> tuple[list[tuple[str, str, int, int, str, int]], int | None]:
        """List up to `limit` stored keys of a model, or of all, from `cursor` (0 at first) on.

        Returns:
            Chunk hash in hex, model, kv rank, object group, cache salt, and length in bytes of
            each, and the cursor to go on with, None at the end.
        """

    def locked_keys(self) -> int:
        """Return how many keys lookups have locked."""

@final
class MemoryTasks(KeyWatch):
    """A connector as programs ask it that name memory by its address.

    A task is a batch of keys. Each key has one part or several, all keys of a task as many; each
    part is a chunk of its own, stored under `prefix@part@key`. A key is there if all of its parts
    are.

    Whoever passes an address keeps that memory in its place, and uses it for nothing else, until
    the task has completed or `Connector.close()` has returned. Several threads may use an object.

    Every method raises ClosedError after `Connector.close()`, but for `take_finished()`, and
    SubmitError for what a connector's submits refuse.
    """

    def __new__(cls, connector: Connector) -> Self:
        """Take a connector over: its completions are taken here from now on.

        Args:
            connector: Open, and drained by nobody else.
        """

    def store(
        self,
        prefix: str,
        keys: Sequence[str],
        addresses: Sequence[int],
        lengths_bytes: Sequence[int],
    ) -> int:
        """Store memory, and return the task.

        Args:
            prefix: Begins all keys: a namespace, `@`, and a rank of 8 hexadecimal digits.
            keys: Without `@`.
            addresses: Of the parts of the first key, then of the second one, and so on.
            lengths_bytes: One for each address.
        """

    def load(
        self,
        prefix: str,
        keys: Sequence[str],
        addresses: Sequence[int],
        lengths_bytes: Sequence[int],
    ) -> int:
        """Load into memory, and return the task; the arguments are those of `store()`.

        What is not stored in exactly its length is answered False. The memory of such a key holds
        some of its parts, or none.
        """

    def take_finished(self) -> list[tuple[int, list[bool], _FailureCode | None, str, float]]:
        """Take what became of all tasks that have completed, each once, without waiting.

        Returns:
            Of each: the task, an answer for each key, why the first one failed that did (its code,
            or None, and a text, or ""), and the seconds from its submit until the last answer.
        """

    def wait(self, task: int) -> tuple[int, list[bool], _FailureCode | None, str, float]:
        """Wait for a task, without the GIL, and take what became of it.

        If the connector is closed meanwhile, ClosedError comes when that has let go of all memory.
        """

    def wait_all(self) -> None:
        """Wait until all tasks have completed; what became of them is left to be taken."""

    def exists(self, prefix: str, keys: Sequence[str], parts: int = 1) -> list[bool]:
        """Say of each key whether it is stored with so many parts, and lease it."""

    def count_leading(self, prefix: str, keys: Sequence[str], parts: int = 1) -> int:
        """Return how many leading keys are stored with so many parts, and lease these."""

    def touch(self, prefix: str, keys: Sequence[str], parts: int = 1) -> list[bool]:
        """Count a use of each key now, and say of each whether it is stored."""

    def holds(self, prefix: str, keys: Sequence[str], parts: int = 1) -> list[bool]:
        """Say of each key whether it is stored now; unlike exists() it leases nothing."""

@final
class BlockingStore:
    """A connector as programs ask it that wait for each answer.

    Several threads may use an object. Every method raises ClosedError after `Connector.close()`,
    SubmitError for what a connector's submits refuse, and ConfigError for a timeout that is not 0
    to 3600 seconds. An exception of a signal's handler ends a call, as the timeout does; its
    memory is held until the batch has completed.
    """

    def __new__(cls, connector: Connector) -> Self:
        """Take a connector over: its completions are taken here from now on.

        Args:
            connector: Open, and drained by nobody else.
        """

    def put(
        self, keys: Sequence[str], memory: Sequence[Memory], timeout_s: float
    ) -> tuple[list[bool], _FailureCode | None, str] | None:
        """Store chunks, and wait.

        Returns:
            One bool per key, the kind of the failure (None if all succeeded) and its text; None if
            that did not come in time.
        """

    def get(
        self, keys: Sequence[str], memory: Sequence[Memory], timeout_s: float
    ) -> tuple[list[bool], _FailureCode | None, str] | None:
        """Load chunks into memory of their lengths, and wait; the result is that of `put()`."""

    def delete(
        self, keys: Sequence[str], timeout_s: float
    ) -> tuple[list[bool], _FailureCode | None, str] | None:
        """Remove keys, and wait for the index file; the result is that of `put()`."""

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Say of each key whether it is stored, and lease it."""

    def lengths(self, keys: Sequence[str]) -> list[int | None]:
        """Return the length of each chunk in bytes, or None where a load would miss."""

@final
class RegisteredMemory:
    """Memory of `register_memory()`, until it is closed or dropped."""

    @property
    def registered_bytes(self) -> int:
        """Registered bytes from its start on; the log has the reason if not all."""

    def close(self) -> None:
        """Unregister it, and release the buffer. It waits for transfers, 1 s at most."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None = None,
        exception: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class StoredChunks:
    """The chunks that a store holds, by its index, in no order: an iterator of dicts.

    It takes no lock and writes nothing, so that the owner may be at work; what comes or goes
    meanwhile may be missing. What is damaged is passed over; `damage()` tells of it.
    """

    def __new__(
        cls,
        path: str | os.PathLike[str],
        index_path: str | os.PathLike[str] | None = None,
        *,
        most_bytes_per_s: int | None = None,
    ) -> Self:
        """Open the index of the store at `path`.

        Args:
            path: Directory of the store, or block device.
            index_path: Where the index of a block device is, if not on the device.
            most_bytes_per_s: How fast read() reads; None for no bound.

        Raises:
            FormatError: The store was written by a newer kvring.
            ConfigError: No store can be at such a path: a character device, or a name below /dev
                that is not there.
            OSError: There is no store, or its index cannot be opened.
            KvRingError: Its index, or the superblock of the device, is damaged or none.
        """

    def damage(self) -> list[str]:
        """Tell what of the store is broken as far as it was read, a sentence each.

        Torn records, chunks outside their data file, pages of the index that cannot be read, an
        index that was cut short, a superblock without its copy. All of it is known at the end of
        the iteration.
        """

    def facts(self) -> dict[str, Any]:
        """Tell what the store says of itself.

        Returns:
            `store_id` (hex), `format_version`, `created_ms` (Unix time in milliseconds), `layout`
            (None of a block device), `members` (the stores of all paths, if there are several, each
            with `store_id` and `path`: where its owner had it last, or None if that is not known),
            `index_bytes`, `opened_ms` (None if that is damaged), `is_closed_in_order` (False as
            well while it is open), `holder` (who has it open, as far as can be seen from here, or
            None) and `holder_process_id`.

        Raises:
            OSError: The header of the index cannot be read.
        """

    def read(self, *, keep: bool) -> tuple[str, str | None, bytes | None]:
        """Read the chunk that was listed last, past the page cache where that can be.

        Returns:
            "intact", "unchecked" (it was stored without a checksum), "damaged", "unreadable" or
            "gone" (it was deleted or replaced meanwhile); why the disk did not return it; its bytes
            if it is intact or unchecked and `keep` is true.

        Raises:
            ValueError: No chunk was listed.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, Any]:
        """Return the next chunk.

        Returns:
            `key`, `namespace`, `length_bytes`, `created_ms` and `last_used_ms` (Unix time in
            milliseconds), `uses` (loads, up to 65,535), `file` (from the store's directory on),
            `offset_bytes` (where in it the chunk starts) and `variant` (of `submit_batch_set`).

        Raises:
            OSError: The index cannot be read.
        """

def bench_options() -> dict[str, dict[str, str]]:
    """Tell every option that BenchPlan takes: name -> {unit, default, range, meaning}."""

@final
class BenchPlan:
    """What a run of kvring bench does to a store: an immutable, checked set of options."""

    def __new__(cls, **options: Any) -> Self:
        """Read options by name; what is not given has its default.

        Args:
            **options: See `bench_options()`. Numbers may be strings.

        Raises:
            ConfigError: An option is unknown or does not fit, options do not go together, or the
                buffers would take more than half of the memory that is available.
        """

    @property
    def keys(self) -> int:
        """Number of chunks of all jobs."""

    @property
    def stored_bytes(self) -> int:
        """What they take on disk, in bytes."""

    @property
    def capacity_bytes(self) -> int:
        """A capacity in which every SET finds room."""

    @property
    def options(self) -> dict[str, Any]:
        """Every option in force, sizes in bytes; `bs` is a string, `runtime` may be None."""

@final
class BenchRun:
    """A run of kvring bench, in threads of its own. Dropping it ends it."""

    def __new__(
        cls,
        plan: BenchPlan,
        path: Paths,
        capacity: Capacities,
        **options: Any,
    ) -> Self:
        """Open the store, which should be empty, and start.

        Args:
            plan: What to do.
            path: As of Connector.
            capacity: As of Connector.
            **options: As of Connector.

        Raises:
            ConfigError: An option does not fit, or does not go together with the plan.
            InUseError: Another live connector has the store open, or something else the device.
            FormatError: The store was written by a newer kvring.
            NotFormattedError: The block device holds something that kvring has not written.
            EngineError: The engine cannot start: with engine "io_uring" where it is refused.
            OSError: The path cannot be made or opened.
        """

    def poll(self) -> dict[str, Any]:
        """Tell how far it is, without waiting.

        Returns:
            `phase` ("fill", "measure", "check" or "end"), `fraction` of it that is done (0 to 1),
            `elapsed_s` in it, `keys` answered and `bytes` moved in it.
        """

    def stop(self) -> None:
        """Ask it to end: nothing more is submitted, what is in flight is waited for."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end for 0 to 86400 s; tell whether it has come.

        Raises:
            ConfigError: `timeout_s` is out of range.
        """

    def report(self) -> dict[str, Any]:
        """Wait for its end and return what it has measured; works once. The store is closed then.

        Returns:
            `fill`, `measured` and `check`, each None or a dict of `elapsed_s`, `cpu_user_s`,
            `cpu_system_s`, `bytes` and `classes` (by name: `batches`, `keys`, `bytes`, `hits`,
            `misses`, `failed`, `latency_us` of batches); `has_errors`, `interrupted`,
            `failed_keys`, `failed_batches` (their number by code), `wrong_chunks`,
            `damaged_chunks`, `gave_up`, `closed_in_order`, `messages`; `store`, some of its
            stats() at the end.

        Raises:
            KvRingError: A thread could not be started, or the report was taken before.
        """
