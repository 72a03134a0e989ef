"""Which weights a model has: a fingerprint of its files, or its revision in a hub's cache."""

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["weights_of"]

# As vLLM, SGLang and Transformers name them. The configuration goes with them: it scales positions.
_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
_CONFIGURATION: Final = "config.json"

# Read of each file where its times mean nothing.
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096


@functools.cache
def weights_of(model: str, revision: str | None = None, *, is_portable: bool = False) -> str:
    """Return a fingerprint of a model's weights.

    It is that of the first call for as long as the process lives: an engine that runs has the
    weights that were there when it began, whatever is written over them.

    Args:
        model: Its directory, its file, or its name in a hub.
        revision: Of the hub.
        is_portable: Whether copies on other machines have the same fingerprint. It then has samples
            of the files' bytes in place of their times.

    Returns:
        A text; empty if this process can see neither files nor a revision.
    """
    path = Path(model)
    digest = hashlib.sha256()
    try:
        files = [path] if path.is_file() else _files(path)
        for file in files:
            facts = file.stat()
            digest.update(f"{file.name}\0{facts.st_size}\0".encode())
            if is_portable:
                digest.update(b"".join(_samples(file, facts.st_size)))
            else:
                digest.update(f"{facts.st_mtime_ns}\0".encode())
    except OSError:
        return ""
    return digest.hexdigest()[:16] if files else _revision_of(model, revision or "main")


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(
        one for one in directory.iterdir() if one.suffix in _SUFFIXES or one.name == _CONFIGURATION
    )


def _samples(file: Path, size_bytes: int) -> Iterator[bytes]:
    with file.open("rb") as opened:
        for number in range(_SAMPLES):
            opened.seek(max(size_bytes - _SAMPLE_BYTES, 0) * number // (_SAMPLES - 1))
            yield opened.read(_SAMPLE_BYTES)


def _revision_of(model: str, revision: str) -> str:
    """Return the commit of a snapshot in the cache of huggingface_hub (its `file_download.py`)."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    repository = cache / f"models--{model.replace('/', '--')}"
    try:
        if (repository / "snapshots" / revision).is_dir():
            return revision
        return (repository / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        return ""
