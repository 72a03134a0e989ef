"""Stores as commands read them: by their index, without a lock."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kvring import KvRingError
from kvring._native import StoredChunks
from kvring.cli.failure import Failure

__all__ = [
    "chunks_of",
    "facts_of",
    "index_path_option",
    "need_namespace",
    "said_well",
    "store_arguments",
    "store_paths",
]

_MOST_SHOWN = 20

index_path_option = click.option(
    "--index-path",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Where the index is, as in index_path.",
)
store_paths = click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)


def store_arguments(command: Any) -> Any:
    """Give a command the arguments `path` and `index_path`."""
    path = click.argument("path", type=click.Path(path_type=Path))
    return path(index_path_option(command))


@contextmanager
def chunks_of(path: Path, index_path: Path | None) -> Iterator[StoredChunks]:
    """Lend the chunks of a store; say what of it is broken at the end.

    Raises:
        Failure: There is no store, its index cannot be read, or something of it is broken.
    """
    with said_well(path):
        chunks = StoredChunks(path, index_path)
        yield chunks
    if broken := chunks.damage():
        raise Failure(*(f"{path}: {sentence}" for sentence in broken))


def facts_of(path: Path, index_path: Path | None) -> dict[str, Any]:
    """Return what a store says of itself.

    Raises:
        Failure: There is no store, or its index cannot be read.
    """
    with said_well(path):
        return StoredChunks(path, index_path).facts()


def need_namespace(paths: Sequence[Path], index_path: Path | None, name: str) -> tuple[int, int]:
    """Return how many chunks of a namespace a store has, and their bytes.

    Raises:
        Failure: It has none, there is no store, or its index cannot be read.
    """
    keys: Counter[str] = Counter()
    size_bytes = 0
    for path in paths:
        with said_well(path):
            for chunk in StoredChunks(path, index_path):
                keys[chunk["namespace"]] += 1
                size_bytes += chunk["length_bytes"] if chunk["namespace"] == name else 0
    if name not in keys:
        others = [repr(one) for one, _ in keys.most_common(_MOST_SHOWN)]
        more = f" and {len(keys) - len(others):,} more" if len(keys) > len(others) else ""
        there = f"there are {', '.join(others)}{more}" if others else "the store is empty"
        message = f"{paths[0]} has no namespace {name!r}; {there}"
        raise Failure(message)
    return keys[name], size_bytes


@contextmanager
def said_well(path: Path) -> Iterator[None]:
    """Have what goes wrong with the store at `path` said in a sentence.

    Raises:
        Failure: Instead of the errors of the system and of kvring.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise Failure(_missing(path, error)) from error
    except NotADirectoryError:
        raise Failure(f"{path} is no store: it is neither a directory nor a block device") from None
    except BrokenPipeError:
        # Of who reads the output.
        raise
    except OSError as error:
        raise Failure(error.strerror or str(error)) from error
    except KvRingError as error:
        raise Failure(str(error)) from error


def _missing(path: Path, error: OSError) -> str:
    if not path.exists():
        return f"there is no store in {path}: nothing is there"
    if path.is_dir():
        return f"there is no store in {path}: it has no index.kvring"
    return error.strerror or str(error)
