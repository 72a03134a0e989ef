"""Which weights a model has: a fingerprint of its files, or its revision in a hub's cache."""

import errno
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["look_at_weights", "weights_of"]

# As vLLM, SGLang and Transformers name them.
_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")

# Configuration goes with them: it scales positions, quantizes, or names adapters.
_CONFIGURATION: Final = ("config.json", "params.json")
_NO_CONFIGURATION: Final = ("generation_config.json", "tokenizer_config.json")

# A snapshot in the cache of huggingface_hub (its `file_download.py`), or a file of one.
_SNAPSHOT: Final = re.compile(r"/models--[^/]+/snapshots/([0-9a-f]{40}(?:/.+)?)$")

# Read of each file where its times mean nothing.
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096

# Of a long tensor there is a sample for each such piece.
_PIECE_BYTES: Final = 64 << 20

# As the safetensors library limits it.
_MOST_HEADER_BYTES: Final = 100_000_000


@functools.cache
def weights_of(model: str, revision: str | None = None) -> str:
    """Return the fingerprint that a model's weights had at the first call of this process.

    An engine that runs has the weights that were there when it began, whatever is written over
    them. It is empty where they cannot be looked at.
    """
    with suppress(OSError):
        return look_at_weights(model, revision)
    return ""


def look_at_weights(model: str, revision: str | None = None, *, is_portable: bool = False) -> str:
    """Return the fingerprint that a model's weights have now.

    Args:
        model: Its directory, its file, or its name in a hub.
        revision: Of the hub.
        is_portable: Whether copies on other machines have the same fingerprint. It then has samples
            of the files' bytes in place of their times.

    Returns:
        A text; empty if this process can see neither files nor a revision.

    Raises:
        OSError: They may be there, and cannot be looked at.
    """
    if not model:
        return ""
    path = Path(model)
    digest = hashlib.sha256()
    try:
        files = [path] if path.is_file() else _files(path)
        if files and (found := _SNAPSHOT.search(_place_of(path))):
            return found[1]
        for file in files:
            facts = file.stat()
            digest.update(f"{file.name}\0{facts.st_size}\0".encode())
            if is_portable:
                for sample in _samples(file, facts.st_size):
                    digest.update(sample)
            else:
                digest.update(f"{facts.st_mtime_ns}\0".encode())
    except (PermissionError, ValueError):
        return ""
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return ""
        raise
    return digest.hexdigest()[:16] if files else _revision_of(model, revision or "main")


def _place_of(path: Path) -> str:
    """Return where a path leads. The link of a file in a snapshot leads out of it, so it stays."""
    if path.is_dir():
        return os.path.realpath(path)
    return f"{os.path.realpath(path.parent)}/{path.name}"


def _files(directory: Path) -> list[Path]:
    """Return the files of weights and configuration, as engines read them: not those below."""
    if not directory.is_dir():
        return []
    return sorted(one for one in directory.iterdir() if _counts(one.name) and one.is_file())


def _counts(name: str) -> bool:
    is_configuration = name.endswith(_CONFIGURATION) and name not in _NO_CONFIGURATION
    return name.endswith(_SUFFIXES) or is_configuration


def _samples(file: Path, size_bytes: int) -> Iterator[bytes]:
    """Read some of a file: at some places, and of each tensor if it says where they are."""
    with file.open("rb", buffering=0) as opened:
        if file.suffix == ".json":
            yield opened.read()
            return
        last = max(size_bytes - _SAMPLE_BYTES, 0)
        places = {last * number // (_SAMPLES - 1) for number in range(_SAMPLES)}
        if file.suffix == ".safetensors":
            places.update(_tensor_places(opened, size_bytes))
        for place in sorted(places):
            opened.seek(place)
            yield opened.read(_SAMPLE_BYTES)


def _tensor_places(file: BinaryIO, size_bytes: int) -> list[int]:
    """Return where the header and tensors of a safetensors file are; nothing if it is not one.

    A change of few layers, such as a merged LoRA, lies between places that only its length decides.
    """
    header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > min(size_bytes, _MOST_HEADER_BYTES):
        return []
    start = 8 + header_bytes
    try:
        header = json.loads(file.read(header_bytes))
        tensors = [one["data_offsets"] for name, one in header.items() if name != "__metadata__"]
        pieces = [
            range(start + begin, min(start + end, size_bytes), _PIECE_BYTES)
            for begin, end in tensors
            if begin >= 0
        ]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return []
    return [*range(0, start, _SAMPLE_BYTES), *(place for piece in pieces for place in piece)]


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
