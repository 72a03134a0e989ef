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
"""Kinds of failures of a batch; docs/how-to/operations.md says what each means."""

class KvRingError(Exception):
    """Base of every error that kvring raises, but for OSError where the system refuses a path."""

class ConfigError(KvRingError):
    """An option is unknown, missing, out of range, or a path that no store can be on."""

class InUseError(KvRingError):
    """Another live connector has the store open, or something else has the block device.

    The message names its process and host, or what it is.
    """

class FormatError(KvRingError):
    """The store was written by a newer kvring; it is left as it is."""

class NotFormattedError(KvRingError):
    """The block device holds something that kvring has not written; nothing was written."""

class EngineError(KvRingError):
    """The I/O engine, io_uring if that was asked for, cannot start; the message tells why."""

class SubmitError(KvRingError):
    """A batch was refused as a whole, and nothing of it is queued; or keys are not removed."""

    position: int | None
    """Which key or buffer of the batch is wrong, from 0 on; None if it is not one of them."""

class ClosedError(SubmitError):
    """The connector is closed."""

def build_info() -> dict[str, str | int | None]:
    """Tell what this build is.

    Returns:
        `version`, `commit` (None but in a release), `compiler`, `target`, `profile`,
        `format_version` and `device_format_version` of the stores that it makes.
    """

def options() -> dict[str, dict[str, str | None]]:
    """Tell every option that Connector takes: name -> {unit, default, range, meaning}."""

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
    """A store of KV-cache chunks on a local disk, as LMCache's native_plugin adapter wants it.

    Keys are strings of up to 4096 bytes in UTF-8. Chunks have 1 byte to 2 GiB, and at most an
    eighth of the capacity, or 64 MiB where that is more and fits: `stats()["max_chunk_bytes"]`.
    Memory is any contiguous buffer at any address, or a contiguous tensor of torch on the CPU, of
    any dtype; it is held from submit until its completion has been drained. No submit blocks.
    A wrong batch raises SubmitError, which names the first wrong key or buffer by its index;
    nothing of the batch is queued.
    """

    def __new__(cls, path: Paths, capacity: Capacities, **options: Any) -> Self:
        """Open the store at `path`, or at several paths that share its keys.

        A directory is made if it is missing, a block device formatted if there is nothing on it.

        Args:
            path: Directory of the store, or block device, or a list of up to 30 of them.
            capacity: Most bytes that it takes on disk at each path (a whole number of any type), or
                a string such as "500GiB", or "all" of a block device, or a list with one for each
                path.
            **options: See `kvring.options()`.

        docs/how-to/operations.md lists all reasons ("Why an open fails").

        Raises:
            ConfigError: An option is unknown, missing or does not fit, or no store can be at the
                path.
            KvRingError: The paths do not belong together, or something else is in the place of a
                file of the store.
            InUseError: Another live connector has the store open, or something else the device.
            FormatError: The store was written by a newer kvring.
            NotFormattedError: The block device holds something that kvring has not written.
            EngineError: The engine cannot start: with engine "io_uring" where it is refused.
            OSError: The path cannot be made, opened, read or written, or the system has no thread,
                memory, address space or descriptor.
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
        """Store chunks; return the future id.

        A key stored with the very same bytes is not written again; with other bytes it is
        replaced. The completion is ok if every key was stored; its bools say which were. A chunk
        that is longer than `stats()["max_chunk_bytes"]` fails alone. A batch past
        `set_queue_bytes`, or past 131,072 keys, fails at once with the code "queue_full"; where no
        SET is queued a batch of any length is taken. `variants`, one for each chunk, are 32-bit
        fingerprints of what its bytes mean beyond its key; loads by this class find those of 0.

        Raises:
            ClosedError: close() was called.
            SubmitError: Counts differ, a key is too long or no str of valid Unicode, a buffer is
                none or not contiguous, a tensor is not on the CPU, a chunk is empty.
        """

    def submit_batch_get(self, keys: list[str], memoryviews: Sequence[Memory]) -> int:
        """Load chunks; return the future id.

        A key that is not stored in exactly its buffer's length is answered False and
        leaves its buffer as it was.

        Raises:
            ClosedError: close() was called.
            SubmitError: As for a set, but for empty chunks; a buffer is read-only.
        """

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Ask which keys are stored; return the future id.

        Keys of a path whose threads have failed are answered False: nobody can load them.

        Raises:
            ClosedError: close() was called.
            SubmitError: A key is too long or no str of valid Unicode.
        """

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Remove keys; return the future id.

        Answered from memory, the space is freed behind it. Every key is answered True: it means
        "not here any more", so that LMCache's accounting also comes down for keys that were gone
        before.

        Raises:
            ClosedError: close() was called.
            SubmitError: A key is too long or no str of valid Unicode.
        """

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """Return what completed since the last call; empty when nothing did, and after close().

        Each batch is a tuple: future id, ok, error text, one bool per key.
        """

    def drain_coded_completions(
        self,
    ) -> list[tuple[int, _FailureCode | None, str, list[bool]]]:
        """Do the same with the kind of the failure in the place of ok: None if all succeeded."""

    def close(self, timeout_s: float = 20.0, drain_s: float | None = None) -> dict[str, Any]:
        """Take nothing new, finish what is queued, make all durable, release every buffer.

        It returns after `timeout_s` and one second at the latest, whatever a drive or a frozen
        file system does. What is left then, the result and the log say, and threads go on with
        it: until they are done the store stays locked, for this process too. Idempotent: a second
        call waits for the first and returns the same. Does nothing in a fork of the process that
        opened it.

        Args:
            timeout_s: 0 to 3600.
            drain_s: How much of it is for what is queued, 0 to `timeout_s`; by default half of it.
                What is still queued then is lost.

        Returns:
            `shutdown_clean`: the store is marked as closed in order; `partial_flush`: operations
            were dropped, or are not answered yet; `abandoned`: how many; `memory_held`: the
            kernel did not finish in time, and still has memory of callers, who must leave it
            where it is (otherwise no buffer is touched any more); `timed_out`: threads go on;
            `not_durable`: how many stores and removals, at most, power loss may undo.

        Raises:
            ConfigError: `timeout_s` or `drain_s` is out of range.
        """

    @property
    def metrics_port(self) -> int | None:
        """The option of this name; None if it is off."""

    @property
    def recovery(self) -> dict[str, Any]:
        """What opening found: chunks `kept`, and how many records it threw out and why.

        `clean_shutdown` tells how the store was left, `reset` why the whole index was given up, if
        it was, `truncated` whether it was cut short; `to_verify` chunks are still to be read after
        a crash. Thrown out: `torn`, `out_of_range`, `overlapping`, `duplicate`, `expired`, `moved`,
        `stale`; `unreadable_pages` of the index, `orphans` (files).
        docs/reference/metrics.md explains each.
        """

    def stats(self) -> dict[str, Any]:
        """Return state and counters as one dict, sizes in bytes, flat but for `paths`.

        `paths` is a list with a dict for each path; the other numbers are the sums of theirs.
        docs/how-to/operations.md tells what each name means.
        """

    def latency_histograms(
        self,
    ) -> list[tuple[str, str, list[tuple[int, int]], int, int]]:
        """Tell how long operations took since the open.

        Returns:
            For "get", "set" and "delete", and their phases "wait", "device" and "total": class,
            phase, upper bounds in microseconds with the number of operations up to each, number of
            all operations, and about what they took together in microseconds.
        """

    def counters(self) -> dict[str, dict[str, int]]:
        """Return what operators watch, in the groups "storage", "writer" and "lookup".

        Their names do not clash, so that the groups can be merged; docs/reference/metrics.md tells
        the meaning and unit of each.
        """

    def submit_batch_prefix(self, keys: list[str]) -> int:
        """Ask how many leading keys are stored; return the future id.

        Answered like submit_batch_exists: True for each leading key that is stored, False from the
        first on that is not. What is found is leased as one.

        Raises:
            ClosedError: close() was called.
            SubmitError: A key is too long or no str of valid Unicode.
        """

    def set_epoch(self, name: str) -> None:
        """Begin an epoch of weights that change under one model name.

        What was stored in another epoch is missed from now on, and found again when that returns. A
        store is opened in the epoch "".

        Args:
            name: Any text, for instance the step of the training.
        """

    def epoch(self) -> int:
        """Return the 32-bit fingerprint of the epoch of now; 0 for ""."""

    def pin(self, keys: list[str]) -> list[bool]:
        """Pin those of the keys that are stored; return of each whether it is pinned now.

        A pinned key is neither evicted nor expires until it is unpinned or deleted, or the store
        is closed; what replaces its chunk is pinned in its place. Half of the capacity at most is
        pinned, by the place that chunks take.

        Raises:
            ClosedError: close() was called.
            SubmitError: A key is too long or no str of valid Unicode.
        """

    def unpin(self, keys: list[str]) -> list[bool]:
        """Take pins back; tell of each key whether it was pinned.

        Raises:
            ClosedError: close() was called.
            SubmitError: A key is too long or no str of valid Unicode.
        """

    def touch(self, keys: list[str]) -> list[bool]:
        """Count a use of each key now, without loading it; return which are stored.

        For chunks that a tier above serves: they are evicted later and expire later, as after a
        load.

        Raises:
            ClosedError: close() was called.
            SubmitError: A key is too long or no str of valid Unicode.
        """

    def usage(self) -> dict[str, dict[str, int | None]]:
        """Tell what each namespace takes, by its name: the model, or "model@salt".

        Keys that are not of LMCache's form belong to the namespace "".

        Returns:
            `keys` stored, the `allocated_bytes` of their chunks on disk, `writing_keys`,
            `remembered_keys` (evicted or not admitted), `quota_bytes` or None.

        Raises:
            ClosedError: close() was called.
        """

    def keys(
        self, namespace: str, cursor: int = 0, limit: int = 1000
    ) -> tuple[list[tuple[str, str]], int | None]:
        """List keys of a namespace that are stored or being written.

        Args:
            namespace: As in usage().
            cursor: 0, or what the call before returned.
            limit: At least so many keys are returned, if there are; some more may be.

        Returns:
            Pairs of key and state ("stored" or "writing"), and the cursor to go on with, None at
            the end.

        Raises:
            ClosedError: close() was called.
        """

    def register_memory(
        self, memory: Memory | int, length_bytes: int | None = None
    ) -> RegisteredMemory:
        """Register writable memory, so that transfers inside it need no page looked up.

        A buffer is held until it is closed. Memory given by its address and `length_bytes` must
        stay mapped as it is until then. What the system refuses is said once in the log, and goes
        without.

        Raises:
            ClosedError: close() was called.
            SubmitError: It has no bytes, is read-only, or overlaps with memory that is registered.
            TypeError: An address comes without `length_bytes`, or a buffer with it.
        """

    def purge(self, namespace: str) -> dict[str, Any]:
        """Remove everything of a namespace that is not pinned, also what is being written.

        Returns:
            `keys` that were stored, payload `bytes` of their chunks, and the keys that stayed
            because they are `pinned`.

        Raises:
            ClosedError: close() was called.
            SubmitError: The index of a path takes no change, and nothing is removed; or it did
                not take all of it, and a restart may bring keys back.
        """

    def change_limits(
        self,
        *,
        capacity: Capacities | None = None,
        ttl: float | str | None = None,
        quotas: Mapping[str, int | str] | None = None,
    ) -> None:
        """Change limits of the open store; what is not given stays.

        What no longer fits is evicted in the background, but for what is pinned, leased, read or
        being written; `used_bytes` in `stats()` tells how far that is. The next open has the limits
        that it is given.

        Args:
            capacity: Bytes, or a size such as "500GiB"; of each path if there are several, in the
                proportion that they have.
            ttl: Seconds, or a string such as "7d"; "off" for none. What is stored has it too.
            quotas: Bytes, or sizes, of the namespaces that change; "none" takes a quota away.

        Raises:
            ClosedError: close() was called.
            ConfigError: Nothing has changed, as a value does not fit: a block device, another
                proportion of capacities, too little for the index or for what is pinned, or more
                than the file system has.
        """

    def limits(self) -> dict[str, Any]:
        """Return the limits as they are now.

        Returns:
            `capacity_bytes` by path in use, `ttl_s` or None, `quota_bytes` by namespace.

        Raises:
            ClosedError: close() was called.
        """

    def expire(self) -> int:
        """Take out what was not used for longer than `ttl`, now; return how many chunks.

        It happens by itself as well.

        Raises:
            ClosedError: close() was called.
        """

    def check(self) -> dict[str, Any]:
        """Compare index, order of eviction, namespaces and space while everything stands still.

        Returns:
            `keys`, `stored_bytes` of their chunks on disk, `moving_bytes` (being written, read for
            the last time, or about to be freed), `reserved_bytes` (of quotas, for chunks on their
            way in), and `problems`, an empty list if all is well.

        Raises:
            ClosedError: close() was called.
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
    """Memory that a connector has registered, until it is closed or dropped."""

    @property
    def registered_bytes(self) -> int:
        """Bytes from its start on that were registered; the log says why, if not all."""

    def close(self) -> None:
        """Unregister it, and let the buffer go. Idempotent; in a fork of the owner without effect.

        A transfer in the kernel keeps its pages to its end. It waits for 1 s at most.
        """

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
