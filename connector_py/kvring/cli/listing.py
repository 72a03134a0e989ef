"""`kvring ls`: list the chunks of a store, and where their bytes are."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvring import KvRingError
from kvring._native import StoredChunks

_DESCRIPTION = """
Lists the chunks that a store holds: what its index says, read without a lock, so that the owner may
be at work meanwhile. Nothing is changed. In layout 'files' each chunk is a file of its own, with
nothing but its bytes in it; in layout 'extents' it is a part of a data file, or of the block
device, from an offset on.
"""

_EPILOG = """
What is broken is told on standard error: a store whose index is missing, damaged, not to be read or
of a newer version; records that are torn or name extents that do not exist. Only the index and
the lengths of data files are looked at, no chunk is read. Exit status: 0 if all is well, 1 if
something is broken or there is no store, 2 for wrong arguments.
"""

_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60}


def add_parser(commands: Any) -> None:
    """Add the command to what `ArgumentParser.add_subparsers` returned."""
    parser = commands.add_parser(
        "ls",
        help="list the chunks of a store, with the files that they are in",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="directory, or block device, of the store"
    )
    parser.add_argument(
        "--index-path", type=Path, metavar="DIRECTORY", help="where the index is, as in index_path"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each chunk")
    parser.add_argument(
        "--namespace", metavar="NAME", help="only those of this namespace: model, or model@salt"
    )
    parser.add_argument(
        "--key-prefix", metavar="TEXT", default="", help="only those whose key starts with it"
    )
    parser.add_argument(
        "--file", metavar="NAME", help="only what is in the file with this name, or at this path"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.path
    try:
        chunks = StoredChunks(path, arguments.index_path)
        _print(_chosen(chunks, arguments), path, as_json=arguments.json)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads it has enough; what is still buffered must not be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FileNotFoundError as error:
        return _fail(_missing(path, error))
    except NotADirectoryError:
        return _fail(f"{path} is no store: it is neither a directory nor a block device")
    except OSError as error:
        return _fail(error.strerror or str(error))
    except KvRingError as error:
        return _fail(str(error))
    broken = chunks.damage()
    return _fail(*(f"{path}: {sentence}" for sentence in broken)) if broken else 0


def _missing(path: Path, error: OSError) -> str:
    if not path.exists():
        return f"there is no store in {path}: nothing is there"
    if path.is_dir():
        return f"there is no store in {path}: it has no index.kvring"
    return error.strerror or str(error)


def _fail(*messages: str) -> int:
    for message in messages:
        print(f"kvring ls: {message}", file=sys.stderr)
    return 1


def _chosen(chunks: StoredChunks, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    name = Path(arguments.file).name if arguments.file else None
    for chunk in chunks:
        is_chosen = (
            arguments.namespace in (None, chunk["namespace"])
            and chunk["key"].startswith(arguments.key_prefix)
            and name in (None, Path(chunk["file"]).name)
        )
        if is_chosen:
            yield chunk


def _print(chunks: Iterator[dict[str, Any]], path: Path, *, as_json: bool) -> None:
    now_s = time.time()
    for number, chunk in enumerate(chunks):
        file = str(path / chunk["file"])
        if as_json:
            print(json.dumps({**chunk, "file": file}))
            continue
        if number == 0:
            print(f"{'BYTES':>10} {'AGE':>6} {'UNUSED':>6} {'USES':>5}  NAMESPACE  FILE  KEY")
        age, unused = (_span(now_s - chunk[name] / 1000) for name in ("created_ms", "last_used_ms"))
        where = f"{file}+{chunk['offset_bytes']}" if chunk["offset_bytes"] else file
        # A key may hold anything, ends of lines as well.
        namespace, key = (json.dumps(chunk[name])[1:-1] for name in ("namespace", "key"))
        print(
            f"{chunk['length_bytes']:>10} {age:>6} {unused:>6} {chunk['uses']:>5}  "
            f"{namespace or '-'}  {where}  {key}"
        )


def _span(seconds: float) -> str:
    """Return a time to be read: the largest unit that fits, as in 3d or 12s."""
    for unit, length_s in _UNITS_S.items():
        if seconds >= length_s:
            return f"{seconds / length_s:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
