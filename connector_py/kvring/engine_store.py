"""A store as vLLM's tiers and SGLang's backends have it: memory by address, their own messages."""

import hashlib
import json
import logging
from contextlib import suppress
from typing import Any, Final

from kvring._native import ConfigError, KvRingError, MemoryTasks, RegisteredMemory, qualified
from kvring.connector import Connector
from kvring.logs import LogLimit

__all__ = [
    "EngineStore",
    "close_store",
    "digest_of",
    "identity_of",
    "options_of",
    "register_memory",
]

_logger = logging.getLogger(__name__)

# As vLLM shortens the digest in the names of its own directories (file_mapper.py of vLLM 0.33.0).
_DIGEST_DIGITS: Final = 12


_PATHS: Final = ("path", "index_path", "require_mount")


class EngineStore:
    """A store, its tasks, and the engine's memory that is registered with it."""

    def __init__(self, where: str, options: dict[str, Any]) -> None:
        """Open the store.

        Args:
            where: Where the engine's configuration has the options, for messages.
            options: Those of `kvring.Connector`, as the user wrote them.

        Raises:
            ValueError: An option, or the path, cannot be used; the message names it.
            KvRingError: As `kvring.Connector` does, for all other reasons.
            OSError: Likewise.
        """
        try:
            self.connector = Connector(**options)
        except KvRingError as error:
            kind = ValueError if isinstance(error, ConfigError) else type(error)
            raise kind(f"{where}: {error}") from error
        self.tasks = MemoryTasks(self.connector)
        self._identity = identity_of(options)
        self._registered: list[RegisteredMemory] = []
        self._log_limit = LogLimit()

    def register(self, address: int, length_bytes: int) -> None:
        """Register memory that the engine keeps where it is until `close()`."""
        registered = register_memory(self.connector, address, length_bytes)
        if registered is not None:
            self._registered.append(registered)

    def note(self, kind: str | None, error: str) -> None:
        """Log why tasks failed, each kind of failure once a minute.

        Args:
            kind: The code of the failure, or the name of an exception's type; None if none failed.
            error: What is logged of it.
        """
        if kind is not None and self._log_limit.is_due(kind):
            _logger.warning("%s: chunks are not stored or loaded: %s", self.path, error)

    def note_refusal(self, refusal: Exception) -> None:
        """Log likewise why no task was begun."""
        self.note(type(refusal).__name__, str(refusal))

    def stored_as(self, namespace: str) -> str:
        """Return a namespace of the keys that the engine gives to `tasks`, as the store has it."""
        return qualified(self._identity, namespace)

    @property
    def path(self) -> str:
        """The first path of the store."""
        path: str = self.connector.stats()["paths"][0]["path"]
        return path

    def close(self) -> None:
        """Close the store, as `close_store()` does."""
        close_store(self.connector, self._registered)


def close_store(store: Connector, registered: list[RegisteredMemory]) -> None:
    """Finish or drop what is queued, and let go of an engine's memory. Idempotent.

    Args:
        store: The store.
        registered: The engine's memory that is registered with it.

    Raises:
        RuntimeError: A drive does not answer, and the kernel still holds some of that memory: it
            must stay mapped. The store is closed as far as it can be.
    """
    shutdown = store.close()
    for memory in registered:
        memory.close()
    if shutdown["memory_held"]:
        path = store.stats()["paths"][0]["path"]
        text = f"{path}: the drive does not answer; the memory of its transfers must stay mapped"
        raise RuntimeError(text)


def register_memory(store: Connector, address: int, length_bytes: int) -> RegisteredMemory | None:
    """Register an engine's memory with a store as fixed buffers of io_uring.

    Returns:
        What unregisters it when it is closed; None if it is refused: then transfers go on
        without, and the log says why.
    """
    try:
        return store.register_memory(address, length_bytes)
    except KvRingError as error:
        _logger.warning("memory is not registered, and transfers go on without that: %s", error)
        return None


def identity_of(options: dict[str, Any]) -> str | None:
    """Return the identity that a store's options name."""
    identity = options.get("identity")
    return None if identity in (None, "none") else str(identity)


def options_of(options: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    """Return the options of one of several processes that have the same configuration.

    Its number takes the place of `{name}` in paths, and is added to `metrics_port`.
    """

    def fill(path: Any) -> Any:
        if isinstance(path, str):
            return path.replace(f"{{{name}}}", str(number))
        return [fill(one) for one in path] if isinstance(path, list) else path

    own = {key: fill(one) if key in _PATHS else one for key, one in options.items()}
    # What is no number is for the store to take or refuse.
    with suppress(KeyError, ValueError):
        own["metrics_port"] = int(str(own["metrics_port"])) + number
    return own


def digest_of(fields: dict[str, Any]) -> str:
    """Return a digest of what decides how an engine's chunks are laid out."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_DIGITS]
