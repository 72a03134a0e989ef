"""Fuzz target: hostile archives for `kvring import`.

What is whole is stored, what is wrong is told, and no chunk is longer than the archive.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType

from kvring import Connector
from kvring.cli.archive import ArchiveError, Reader
from kvring.cli.opening import store_chunks

_BLOCK_BYTES = 512
_CHECKSUM = slice(148, 156)
_MAGIC = slice(257, 262)


@cache
def _store() -> Connector:
    directory = Path(tempfile.mkdtemp()) / "store"
    return Connector(directory, "16MiB", engine="posix", min_free=0)


def run(data: bytes) -> None:
    """Read an archive, and store what it holds."""
    chunks = []
    try:
        for key, content, variant in Reader(io.BytesIO(data)):
            if len(content) > len(data):
                raise AssertionError(f"{len(content)} bytes out of {len(data)}")
            chunks.append((key, content, variant))
    except ArchiveError:
        pass
    for _ in store_chunks(_store(), chunks):
        pass


def sealed(data: bytes) -> bytes:
    """Give each header of a tar the checksum that it should have."""
    blocks = bytearray(data)
    for start in range(0, len(blocks) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        header = blocks[start : start + _BLOCK_BYTES]
        if header[_MAGIC] == b"ustar":
            header[_CHECKSUM] = b" " * 8
            header[_CHECKSUM] = b"%06o\0 " % sum(header)
            blocks[start : start + _BLOCK_BYTES] = header
    return bytes(blocks)


def main() -> None:
    """Fuzz, as libFuzzer's arguments say."""
    import atheris

    def changed(data: bytes, most_bytes: int, _seed: int) -> bytes:
        return sealed(atheris.Mutate(data, most_bytes))

    for function in (*vars(Reader).values(), *vars(tarfile.TarInfo).values()):
        if isinstance(function, FunctionType):
            atheris.instrument_func(function)
    atheris.Setup(sys.argv, run, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
