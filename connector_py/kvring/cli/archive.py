"""Archives of chunks: a tar file with a member for each, and one at the end that counts them.

The key of a chunk, its variant, and BLAKE2b-256 of the key, a zero byte, the variant, a zero byte
and its bytes, are pax headers with the names of extended attributes, which any tar passes over or
sets. The last member, `kvring.json`, tells how many chunks there are: an archive without it was cut
short.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from typing import IO, Any, Final

from kvring._native import ANY_VARIANT
from kvring.cli.output import count_text

__all__ = ["ArchiveError", "Reader", "Writer"]

_END: Final = "kvring.json"
_KEY: Final = "SCHILY.xattr.user.kvring.key"
_VARIANT: Final = "SCHILY.xattr.user.kvring.variant"
_DIGEST: Final = "SCHILY.xattr.user.kvring.blake2b"
_FORMAT: Final = 1
_DIGEST_BYTES: Final = 32
# src/format/record.rs, src/key.rs
_MOST_CHUNK_BYTES: Final = 2 << 30
_MOST_KEY_BYTES: Final = 4096
_MOST_END_BYTES: Final = 1 << 20
# What tarfile raises for headers that make no sense.
_NO_TAR: Final = (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError)


class ArchiveError(Exception):
    """It is no archive, it was cut short, or something of it is damaged."""


class _Sequential(io.RawIOBase):
    """A stream that is written from its beginning, and asked for no more."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return 0

    def write(self, content: Any) -> int:
        return self._stream.write(content)


class Writer:
    """Writes an archive to a stream that cannot be gone back in."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Begin an archive."""
        self.chunks = self.size_bytes = 0
        self._tar = tarfile.TarFile(
            fileobj=_Sequential(stream), mode="w", format=tarfile.PAX_FORMAT
        )

    def add(self, key: str, content: bytes, created_ms: int, variant: int) -> None:
        """Add a chunk."""
        member = tarfile.TarInfo(f"chunks/{self.chunks:010d}")
        member.size = len(content)
        member.mtime = created_ms // 1000
        member.mode = 0o600
        digest = _digest(key, str(variant), content)
        member.pax_headers = {_KEY: key, _VARIANT: str(variant), _DIGEST: digest}
        self._tar.addfile(member, io.BytesIO(content))
        self.chunks += 1
        self.size_bytes += len(content)

    def end(self, **facts: Any) -> None:
        """Write the last member, with what is to be told of where it comes from."""
        document = {
            **facts,
            "format": _FORMAT,
            "chunks": self.chunks,
            "size_bytes": self.size_bytes,
        }
        content = json.dumps(document).encode()
        member = tarfile.TarInfo(_END)
        member.size = len(content)
        member.mode = 0o600
        self._tar.addfile(member, io.BytesIO(content))
        self._tar.close()


class Reader:
    """Reads an archive from a stream that cannot be gone back in."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Begin.

        Raises:
            ArchiveError: It is no archive.
        """
        # Of chunks whose bytes are not those that were archived.
        self.damaged: list[str] = []
        try:
            # The stream is the caller's to close.
            self._tar = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115
        except _NO_TAR as error:
            message = f"it is no archive of kvring: {error}"
            raise ArchiveError(message) from error

    def __iter__(self) -> Iterator[tuple[str, bytes, int]]:
        """Return keys, chunks and variants; those that are damaged are passed over.

        Raises:
            ArchiveError: It was cut short, is damaged where no chunk is, or is of a newer kvring.
        """
        count = 0
        try:
            for member in self._tar:
                if member.name == _END:
                    self._check_end(self._read(member, _MOST_END_BYTES), count)
                    return
                key = member.pax_headers.get(_KEY)
                if key is None:
                    raise _no_chunk(member)
                content = self._read(member, _MOST_CHUNK_BYTES)
                count += 1
                variant = member.pax_headers.get(_VARIANT, "0")
                digest = member.pax_headers.get(_DIGEST)
                is_whole = _is_key(key) and _is_variant(variant)
                if is_whole and _digest(key, variant, content) == digest:
                    yield key, content, int(variant)
                else:
                    self.damaged.append(key)
        except _NO_TAR as error:
            message = (
                f"it was cut short, or is damaged, behind {count_text(count, 'chunk')}: {error}"
            )
            raise ArchiveError(message) from error
        message = f"it was cut short behind {count_text(count, 'chunk')}"
        raise ArchiveError(message)

    def _read(self, member: tarfile.TarInfo, most_bytes: int) -> bytes:
        # One with holes says any length, however short the archive is.
        is_whole = member.isreg() and not member.issparse()
        if not is_whole or not 0 < member.size <= most_bytes:
            raise _no_chunk(member)
        file = self._tar.extractfile(member)
        content = b"" if file is None else file.read()
        if len(content) != member.size:
            message = "a chunk is cut off"
            raise tarfile.ReadError(message)
        return content

    def _check_end(self, content: bytes, count: int) -> None:
        try:
            document = json.loads(content)
            found, written_by_format = int(document["chunks"]), int(document["format"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            message = f"its last member is damaged: {error}"
            raise ArchiveError(message) from error
        if written_by_format > _FORMAT:
            message = f"it has format {written_by_format}; this kvring reads up to {_FORMAT}"
            raise ArchiveError(message)
        if found != count:
            message = f"it should have {count_text(found, 'chunk')} and has {count:,}"
            raise ArchiveError(message)


def _no_chunk(member: tarfile.TarInfo) -> ArchiveError:
    return ArchiveError(f"it is no archive of kvring: {member.name!r} is no chunk")


def _is_key(key: str) -> bool:
    """Say whether a store takes it: what is no UTF-8 is lone surrogates here."""
    try:
        return len(key.encode()) <= _MOST_KEY_BYTES
    except UnicodeEncodeError:
        return False


def _is_variant(text: str) -> bool:
    return text.isdecimal() and int(text) <= ANY_VARIANT


def _digest(key: str, variant: str, content: bytes) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    # A tar has no checksum of its own for these.
    digest.update(f"{key}\0{variant}\0".encode())
    digest.update(content)
    return digest.hexdigest()
