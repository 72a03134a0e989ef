"""Clients for the shared tiers that LMCache reaches by `resp`, `fs` and `fs_native`.

They read and write LMCache's own form. LMCache 0.5.6's `resp` leaves the rest of an error in its
socket, so that later replies are those to earlier requests. Its `fs` and `fs_native` name a
temporary file after the key alone, and never replace a file.
"""

import contextlib
import ctypes
import os
import uuid
from pathlib import Path
from typing import Any, Final, Protocol

import redis
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import _object_key_to_filename
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvring.shared_tier.buffers import BLOCK_BYTES
from kvring.shared_tier.sidecars import key_text

__all__ = ["Client", "DirectoryClient", "RedisClient"]

_CONNECT_TIMEOUT_S: Final = 5.0
# For a chunk that is sent, and for each part of one that is received.
_SOCKET_TIMEOUT_S: Final = 30.0
_SOCKET_READ_BYTES: Final = 1 << 20


class Client(Protocol):
    """What holds objects by their keys. Several threads may use it; each call may wait.

    Any exception says that the call failed.
    """

    def has(self, keys: list[ObjectKey]) -> list[bool]:
        """Say of each key whether it is there."""

    def read(self, key: ObjectKey, memory: memoryview) -> bool:
        """Read an object into memory; say whether it is there, exactly as long as the memory."""

    def write(self, key: ObjectKey, memory: memoryview) -> None:
        """Write an object, in place of one that may be there."""


class RedisClient:
    """A Redis or Valkey server. A connection on which anything failed is not used again."""

    def __init__(self, config: Any) -> None:
        """Connect.

        Args:
            config: LMCache's RESPL2AdapterConfig.

        Raises:
            redis.RedisError: It cannot be reached, or refuses this client.
        """
        environment = os.environ
        self._redis: Any = redis.Redis(
            host=config.host,
            port=config.port,
            username=config.username or environment.get("LMCACHE_RESP_USERNAME") or None,
            password=config.password or environment.get("LMCACHE_RESP_PASSWORD") or None,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_read_size=_SOCKET_READ_BYTES,
            # kvring asks again by itself, or counts a miss.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._ask(self._redis.ping)

    def has(self, keys: list[ObjectKey]) -> list[bool]:
        """Say of each key whether it is there."""
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key_text(key))
        return [count == 1 for count in self._ask(pipeline.execute)]

    def read(self, key: ObjectKey, memory: memoryview) -> bool:
        """Read an object into memory; say whether it is there, exactly as long as the memory."""
        value = self._ask(self._redis.get, key_text(key))
        if value is None or len(value) != len(memory):
            return False
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        # Other Python threads run meanwhile.
        ctypes.memmove(address, value, len(value))
        return True

    def write(self, key: ObjectKey, memory: memoryview) -> None:
        """Write an object, in place of one that may be there."""
        self._ask(self._redis.set, key_text(key), memory)

    def _ask(self, command: Any, *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except BaseException:
            # An error may be that of a server which is not the primary any more.
            self._redis.connection_pool.disconnect(inuse_connections=False)
            raise


class DirectoryClient:
    """Files in a directory that several nodes may have mounted."""

    def __init__(self, config: Any) -> None:
        """Make the directory if it is missing, as LMCache does.

        Args:
            config: LMCache's FSL2AdapterConfig or FSNativeL2AdapterConfig.

        Raises:
            OSError: It cannot be made.
        """
        self._directory = Path(config.base_path)
        self._temporary = self._directory / (config.relative_tmp_dir or ".")
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._direct_flag = os.O_DIRECT if config.use_odirect else 0

    def has(self, keys: list[ObjectKey]) -> list[bool]:
        """Say of each key whether it is there."""
        return [self._path(key).exists() for key in keys]

    def read(self, key: ObjectKey, memory: memoryview) -> bool:
        """Read an object into memory; say whether it is there, exactly as long as the memory."""
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | self._direct(memory))
        except FileNotFoundError:
            return False
        try:
            return os.fstat(descriptor).st_size == len(memory) and _read_all(descriptor, memory)
        finally:
            os.close(descriptor)

    def write(self, key: ObjectKey, memory: memoryview) -> None:
        """Write an object, in place of one that may be there."""
        # Other nodes may write the same one at the same time.
        temporary = self._temporary / f".{uuid.uuid4().hex}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | self._direct(memory)
        descriptor = os.open(temporary, flags, 0o644)
        try:
            try:
                _write_all(descriptor, memory)
            finally:
                os.close(descriptor)
            temporary.replace(self._path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _path(self, key: ObjectKey) -> Path:
        name: str = _object_key_to_filename(key)
        return self._directory / name

    def _direct(self, memory: memoryview) -> int:
        """Return the flag for O_DIRECT, where it is wanted and the length allows it."""
        return self._direct_flag if len(memory) % BLOCK_BYTES == 0 else 0


def _read_all(descriptor: int, memory: memoryview) -> bool:
    """Read until memory is full; say whether the file was long enough."""
    done_bytes = 0
    while done_bytes < len(memory):
        count = os.readv(descriptor, [memory[done_bytes:]])
        if count == 0:
            return False
        done_bytes += count
    return True


def _write_all(descriptor: int, memory: memoryview) -> None:
    done_bytes = 0
    while done_bytes < len(memory):
        done_bytes += os.write(descriptor, memory[done_bytes:])
