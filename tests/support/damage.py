"""Chunks whose bytes are not what was stored: what a drive may return, or somebody has written."""

import os
from pathlib import Path
from typing import Any

from kvring._native import StoredChunks


def damage(store: Path, *keys: str) -> list[dict[str, Any]]:
    """Change a byte in the middle of these chunks, or of all; return where they are."""
    chunks = [one for one in StoredChunks(store) if not keys or one["key"] in keys]
    assert len(chunks) == (len(keys) or len(chunks)) > 0
    for chunk in chunks:
        with (store / chunk["file"]).open("r+b") as file:
            # Of a float32 there, the exponent: an engine that takes it says something else.
            at = chunk["offset_bytes"] + chunk["length_bytes"] // 2 | 3
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x40]))
            os.fsync(file.fileno())
    return chunks
