"""Chunks as LMCache's adapters fs and fs_native keep them: a file for each, named by its key.

Both write `MODEL@0xRANK@GROUP@HASH.data`, or `MODEL@0xRANK@GROUP@HASH@SALT.data`, into one
directory, with `-SEP-` for each slash of the model's name (lmcache/v1/distributed/l2_adapters/
fs_l2_adapter.py in 0.5.6 and 0.5.7rc2).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvring._native import object_key_text

__all__ = ["EXPECTED_NAMES", "ChunkFile", "chunk_files"]

EXPECTED_NAMES: Final = (
    "Files are named MODEL@0xRANK@GROUP@HASH[@SALT].data, such as "
    "facebook-SEP-opt@0x00000000@0@6f1d02ab.data, with -SEP- for each slash of MODEL."
)

_NAME: Final = re.compile(
    r"(?P<model>[^@]+)@0x(?P<rank>[0-9a-f]{8})@(?P<group>[0-9a-f]{1,16})@(?P<hash>(?:[0-9a-f]{2})+)"
    r"(?:@(?P<salt>[^@]+))?\.data",
    re.DOTALL,
)


@dataclass(frozen=True)
class ChunkFile:
    """A chunk in a file of its own."""

    path: Path
    key: str
    size_bytes: int


def chunk_files(directory: Path) -> tuple[list[ChunkFile], int]:
    """Return the chunks in a directory, the newest at the end, and how many other files it has.

    Raises:
        OSError: The directory cannot be read.
    """
    found, others = [], 0
    with os.scandir(directory) as entries:
        for entry in entries:
            matched = _NAME.fullmatch(entry.name)
            if matched is None or not entry.is_file(follow_symlinks=False):
                others += 1
                continue
            facts = entry.stat(follow_symlinks=False)
            model = matched["model"].replace("-SEP-", "/")
            key = object_key_text(
                model,
                int(matched["rank"], 16),
                int(matched["group"], 16),
                bytes.fromhex(matched["hash"]),
                matched["salt"] or "",
            )
            found.append((facts.st_mtime_ns, ChunkFile(Path(entry.path), key, facts.st_size)))
    return [chunk for _, chunk in sorted(found, key=lambda one: one[0])], others
