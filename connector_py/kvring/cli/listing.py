"""`kvring ls`: list the chunks of a store, and where their bytes are."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from kvring._native import StoredChunks
from kvring.cli.failure import Failure
from kvring.cli.output import printable
from kvring.cli.parameters import json_option
from kvring.cli.stores import index_path_option, look_at_each, need_namespace, store_paths

__all__ = ["ls"]

_HEADER = f"{'BYTES':>10} {'AGE':>6} {'UNUSED':>6} {'USES':>5}  NAMESPACE  FILE  KEY"
_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60}


@click.command(short_help="List the chunks of a store.")
@store_paths
@index_path_option
@json_option
@click.option("--namespace", metavar="NAME", help="List only this namespace.")
@click.option("--key-prefix", metavar="TEXT", default="", help="List only keys with this prefix.")
@click.option(
    "--file",
    "file_name",
    metavar="NAME",
    help="List only chunks in the file with this name or path.",
)
def ls(
    paths: tuple[Path, ...],
    index_path: Path | None,
    as_json: bool,
    namespace: str | None,
    key_prefix: str,
    file_name: str | None,
) -> int:
    """List the chunks of the store at PATH.

    It reads the index as info does. AGE is the time since the SET, UNUSED that since the last use.
    --json has a line per chunk, with Unix times in ms. Defects of the index go to standard error.
    """
    name = Path(file_name).name if file_name else None
    if namespace is not None:
        need_namespace(paths, index_path, namespace)
    has_header = as_json

    def print_chosen(path: Path, chunks: StoredChunks) -> None:
        nonlocal has_header
        for chunk in chunks:
            if (
                namespace in (None, chunk["namespace"])
                and chunk["key"].startswith(key_prefix)
                and name in (None, Path(chunk["file"]).name)
            ):
                if not has_header:
                    print(_HEADER)
                    has_header = True
                _print(path, chunk, as_json=as_json)

    _, faults = look_at_each(paths, index_path, print_chosen)
    # Before what is broken is told.
    sys.stdout.flush()
    if faults:
        raise Failure(*faults)
    return 0


def _print(path: Path, chunk: dict[str, Any], *, as_json: bool) -> None:
    file = str(path / chunk["file"])
    if as_json:
        print(json.dumps({**chunk, "file": file}))
        return
    now_s = time.time()
    age, unused = (_span(now_s - chunk[name] / 1000) for name in ("created_ms", "last_used_ms"))
    where = f"{file}+{chunk['offset_bytes']}" if chunk["offset_bytes"] else file
    # A key may hold anything, ends of lines as well.
    namespace, key = (json.dumps(chunk[name])[1:-1] for name in ("namespace", "key"))
    print(
        f"{chunk['length_bytes']:>10} {age:>6} {unused:>6} {chunk['uses']:>5}  "
        f"{namespace or '-'}  {printable(where)}  {key}"
    )


def _span(seconds: float) -> str:
    """Return a time to be read: the largest unit that fits, as in 3d or 12s."""
    for unit, length_s in _UNITS_S.items():
        if seconds >= length_s:
            return f"{seconds / length_s:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
