"""A store for programs that wait for each answer: `kvring.open()`."""

import re
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from kvring import _native
from kvring._native import BlockingStore, ConfigError, KvRingError, SubmitError
from kvring.arguments import Capacities, Memory, Paths, StoreOptions
from kvring.connector import Connector

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["ChunkError", "ChunkTimeoutError", "Store", "open"]

# As long as LMCache waits for its own native connectors.
_TIMEOUT_S: Final = 30.0

_SHOWN_CHARACTERS: Final = 200

# In the format of a buffer.
_FIELD_NAME: Final = re.compile(":[^:]*:")

_MemoryT = TypeVar("_MemoryT", bound="Memory")
_ResultT = TypeVar("_ResultT")


class ChunkError(KvRingError):
    """A chunk was not stored, loaded or deleted; it has `key` and `code`.

    Attributes:
        key: The key.
        code: One of `kvring.FAILURE_CODES`, or None.
    """

    def __init__(self, key: str, code: str | None, reason: str) -> None:
        """Note them; the message is made of key and reason."""
        super().__init__(f"{_shown(key)}: {reason}")
        self.key = key
        self.code = code
        self._reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.code, self._reason)


class ChunkTimeoutError(ChunkError, TimeoutError):
    """The time of a call is over."""


class _Deadline:
    """When a call of several steps ends."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = _seconds(timeout_s)
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left; a timeout out of range as it is, to be refused."""
        return min(self.timeout_s, max(0.0, self._end_s - time.monotonic()))


def _seconds(timeout_s: Any) -> float:
    """Return it as a number, which the native module compares with its range.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(timeout_s, Real):
        raise ConfigError(f"timeout_s = {timeout_s!r} is not valid; it takes 0 to 3600")
    return float(timeout_s)


def _refuse_objects(key: str, memory: Any) -> None:
    """Refuse memory of references: bytes are none, and to follow them ends the process."""
    has_objects = getattr(getattr(memory, "dtype", None), "hasobject", None)
    if has_objects is None:
        # Of no array of numpy. What has no buffer, or a released one, is refused elsewhere.
        with suppress(BufferError, TypeError, ValueError):
            has_objects = "O" in _FIELD_NAME.sub("", memoryview(memory).format)
    if has_objects:
        reason = "its memory has references to objects; pass the bytes of a serialized object"
        raise SubmitError(f"{_shown(key)}: {reason}")


def _refuse_objects_among(keys: Any, outs: Any) -> None:
    # The native module refuses what is no sequence, or of another length.
    if isinstance(keys, Sequence) and isinstance(outs, Sequence):
        for key, out in zip(keys, outs, strict=False):
            _refuse_objects(key, out)


class Store:
    """Chunks of bytes under keys on a local drive: `kvring.open()` returns it.

    - A chunk may go at any time: evicted, expired, or not admitted (option `admit`).
    - A key is text of up to 4096 bytes in UTF-8, with `identity#` if set. In
      `model@kv_rank@object_group@chunk_hash`, optionally with `@salt`, model and salt are its
      namespace.
    - A chunk has 1 byte to 2 GiB, and at most an eighth of the capacity, or 64 MiB if that is more
      and fits: `stats()["max_chunk_bytes"]`.
    - Memory is a contiguous buffer (bytes, bytearray, memoryview, numpy) or a CPU tensor of torch.
      Page-aligned memory is moved without a copy.
    - A failure raises ChunkError, a `timeout_s` that passes ChunkTimeoutError. The memory is then
      in use until `close()`, as after Ctrl-C; the store stays usable.
    - Threads may share a store. A fork may not use it.
    - A wrong key or buffer raises SubmitError, a call after `close()` ClosedError.
    """

    def __init__(
        self, path: Paths, capacity: Capacities, **options: "Unpack[StoreOptions]"
    ) -> None:
        self._connector = Connector(path, capacity, **options)
        self._calls = BlockingStore(self._connector)

    @property
    def connector(self) -> Connector:
        """The `Connector`, for `stats()`, pins and namespaces; do not submit or drain there."""
        return self._connector

    def put(self, key: str, memory: "Memory", *, timeout_s: float = _TIMEOUT_S) -> None:
        """Store a chunk. It replaces the one under this key."""
        deadline = _Deadline(timeout_s)
        _refuse_objects(key, memory)
        self._answers(self._calls.put, [key], [memory], deadline=deadline)

    @overload
    def get(self, key: str, *, timeout_s: float = ...) -> bytearray | None: ...
    @overload
    def get(self, key: str, out: _MemoryT, *, timeout_s: float = ...) -> _MemoryT | None: ...
    def get(self, key: str, out: Any = None, *, timeout_s: float = _TIMEOUT_S) -> Any:
        """Load a chunk into `out`, of exactly its length, or into a new bytearray.

        Returns:
            The memory; None for a miss, which leaves `out` undefined.
        """
        return self._get([key], None if out is None else [out], timeout_s)[0]

    @overload
    def get_many(
        self, keys: Sequence[str], *, timeout_s: float = ...
    ) -> list[bytearray | None]: ...
    @overload
    def get_many(
        self, keys: Sequence[str], outs: Sequence[_MemoryT], *, timeout_s: float = ...
    ) -> list[_MemoryT | None]: ...
    def get_many(
        self,
        keys: Sequence[str],
        outs: Sequence[Any] | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> list[Any]:
        """Load chunks together, each as by `get()`."""
        return self._get(keys, outs, timeout_s)

    def exists(self, key: str) -> bool:
        """Return whether a chunk is stored; it is then not evicted for `lease_s`."""
        return self._refusing([key], self._calls.exists, [key])[0]

    def delete(self, key: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Delete a chunk, if it is stored. After a ChunkError a restart may bring it back."""
        self._answers(self._calls.delete, [key], deadline=_Deadline(timeout_s))

    def close(self, timeout_s: float = 20.0) -> dict[str, Any]:
        """Finish the queue, make all durable, and close the store; see `Connector.close()`."""
        return self._connector.close(_seconds(timeout_s))

    def __enter__(self) -> "Self":
        # Refused by a store that is closed.
        self._calls.exists([])
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._connector).replace("Connector", "Store", 1)

    def _get(self, keys: Sequence[str], outs: Sequence[Any] | None, timeout_s: float) -> list[Any]:
        deadline = _Deadline(timeout_s)
        if outs is None:
            return self._load_new(keys, deadline)
        _refuse_objects_among(keys, outs)
        loaded = self._answers(self._calls.get, keys, outs, deadline=deadline)
        answers = list(zip(keys, outs, loaded, strict=True))
        self._check_lengths([(key, out) for key, out, is_loaded in answers if not is_loaded])
        return [out if is_loaded else None for _, out, is_loaded in answers]

    def _load_new(self, keys: Sequence[str], deadline: "_Deadline") -> list[bytearray | None]:
        wanted: dict[int, int | None] = dict(enumerate(self._lengths(keys)))
        chunks: list[bytearray | None] = [None] * len(wanted)
        while wanted:
            # Empty for a miss: its load counts as one.
            buffers = {position: bytearray(length or 0) for position, length in wanted.items()}
            names, memory = [keys[position] for position in wanted], list(buffers.values())
            loaded = self._answers(self._calls.get, names, memory, deadline=deadline)
            for (position, buffer), is_loaded in zip(buffers.items(), loaded, strict=True):
                if is_loaded:
                    chunks[position] = buffer
            missed = [position for position in wanted if chunks[position] is None]
            if not missed:
                break
            lengths = self._lengths([keys[position] for position in missed])
            # Those that were replaced meanwhile by a chunk of another length.
            wanted = {
                position: length
                for position, length in zip(missed, lengths, strict=True)
                if length not in (None, wanted[position])
            }
        return chunks

    def _check_lengths(self, missed: list[tuple[str, Any]]) -> None:
        """Tell memory of a wrong length from a miss."""
        lengths = self._lengths([key for key, _ in missed])
        for (key, out), length in zip(missed, lengths, strict=True):
            out_bytes = out.nbytes if hasattr(out, "nbytes") else memoryview(out).nbytes
            if length is not None and length != out_bytes:
                reason = f"the chunk has {length} bytes, and out has {out_bytes}"
                raise ChunkError(key, None, f"{reason}; pass memory of {length} bytes, or none")

    def _lengths(self, keys: Sequence[str]) -> list[int | None]:
        return self._refusing(keys, self._calls.lengths, keys)

    def _answers(
        self, call: Callable[..., Any], keys: Sequence[str], *memory: Any, deadline: "_Deadline"
    ) -> list[bool]:
        """Call and wait; return one bool per key."""
        answer = self._refusing(keys, call, keys, *memory, deadline.left_s())
        verb = {"put": "stored", "get": "loaded", "delete": "deleted"}[call.__name__]
        if answer is None:
            reason = (
                f"not {verb} within {deadline.timeout_s:g} s; raise timeout_s, or look at the drive"
            )
            raise ChunkTimeoutError(keys[0], None, reason)
        results: list[bool]
        results, code, error = answer
        if code is not None:
            raise ChunkError(keys[results.index(False)], code, f"not {verb}: {error}")
        return results

    def _refusing(self, keys: Any, call: Callable[..., _ResultT], *arguments: Any) -> _ResultT:
        """Call; a refusal names the key, as far as `keys` are some."""
        try:
            return call(*arguments)
        except SubmitError as error:
            position = error.position
            if position is None and isinstance(keys, Sequence) and len(keys) == 1:
                position = 0
            if position is None:
                raise
            raise type(error)(f"{_shown(keys[position])}: {error}") from error


def _shown(key: str) -> str:
    """Return a key as messages have it: not all of one that is refused for its length."""
    text = repr(key)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def open(  # noqa: A001 - as in gzip and tarfile
    path: Paths, capacity: Capacities, **options: "Unpack[StoreOptions]"
) -> Store:
    """Open a store, or make one; docs/reference/options.md describes the options.

    Args:
        path: Directory or block device, or a list of them that share the keys.
        capacity: Maximum bytes on disk at each path: a number, a string such as "500GiB", or "all"
            of a block device.
        **options: `help(kvring.Store)` lists them.

    Raises:
        KvRingError: docs/reference/errors.md has all reasons and their classes.
        OSError: A system call failed.
    """
    return Store(path, capacity, **options)


def _options_text() -> str:
    """Return the part of a docstring that lists the options."""
    lines = ["Options of `kvring.open()`:"]
    for name, option in _native.options().items():
        if name in StoreOptions.__annotations__:
            unit = f" ({option['unit']})" if option["unit"] else ""
            text = (
                f"{option['meaning']}. Takes {option['range']}{unit}. Default: {option['default']}."
            )
            lines += [
                f"    {name}:",
                *textwrap.wrap(text, 84, initial_indent=" " * 8, subsequent_indent=" " * 8),
            ]
    return "\n".join(lines)


Store.__doc__ = f"{Store.__doc__}\n{textwrap.indent(_options_text(), ' ' * 4)}\n"
