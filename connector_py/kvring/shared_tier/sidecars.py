"""The sidecar of a chunk in a shared tier: its length and checksum, beside LMCache's own form.

An object of 28 bytes, little-endian: `kvring01`, the length of the chunk in bytes, the CRC-64/NVME
of the chunk's key, as LMCache's native connectors write it, and of its bytes, and the variant.
"""

import struct
from dataclasses import replace
from typing import Final, NamedTuple

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.memory_management import TensorMemoryObj

from kvring._native import checksum_with_key, object_key_text
from kvring.shared_tier.buffers import bytes_of

__all__ = ["SIDECAR_BYTES", "UNCHECKED", "Sidecar", "key_text", "sidecar_key"]

_FORM: Final = struct.Struct("<8sQQI")
_MAGIC: Final = b"kvring01"
SIDECAR_BYTES: Final = _FORM.size


class Sidecar(NamedTuple):
    """Length in bytes, checksum and variant of a chunk; `Variants` makes the last."""

    length_bytes: int
    checksum: int
    variant: int

    @classmethod
    def of(cls, key: ObjectKey, chunk: TensorMemoryObj, variant: int) -> "Sidecar":
        """Return the one of a chunk under a key."""
        return cls(chunk.get_size(), checksum_with_key(key_text(key), bytes_of(chunk)), variant)

    @classmethod
    def parse(cls, content: bytes) -> "Sidecar | None":
        """Return what an object says; None if it is no sidecar."""
        magic, *facts = _FORM.unpack(content)
        return cls(*facts) if magic == _MAGIC else None

    def content(self) -> bytes:
        """Return the object that says this."""
        return _FORM.pack(_MAGIC, *self)

    def fits(self, key: ObjectKey, chunk: TensorMemoryObj, variant: int) -> bool:
        """Say whether a chunk is the one that was stored under this key."""
        return self is UNCHECKED or self == Sidecar.of(key, chunk, variant)


# Of a chunk that was stored without a sidecar, where that is allowed: it fits anything.
UNCHECKED: Final = Sidecar(0, 0, 0)


def key_text(key: ObjectKey) -> str:
    """Return a key as LMCache's native connectors write it."""
    fields = (key.model_name, key.kv_rank, key.object_group_id, key.chunk_hash, key.cache_salt)
    return object_key_text(*fields)


def sidecar_key(key: ObjectKey) -> ObjectKey:
    """Return where the sidecar of a key is."""
    return replace(key, model_name=f"{key.model_name}#crc64")
