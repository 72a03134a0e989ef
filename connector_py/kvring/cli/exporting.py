"""`kvring export`: chunks of a store into an archive."""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import click

from kvring._native import StoredChunks
from kvring.cli.archive import Writer
from kvring.cli.failure import Failure, PartialSuccess
from kvring.cli.output import count_text, size_text
from kvring.cli.parameters import json_option
from kvring.cli.progress import progress
from kvring.cli.stores import (
    facts_of,
    index_path_option,
    need_namespace,
    said_well,
    store_paths,
    tell_further_paths,
)

__all__ = ["export_command"]

_EPILOG = """
Exit status: 1 if the archive is truncated, 4 if damaged chunks are left out.
"""


@click.command("export", epilog=_EPILOG, short_help="Write chunks to a tar archive.")
@store_paths
@index_path_option
@click.option("--namespace", metavar="NAME", help="Export only this namespace.")
@click.option(
    "--output",
    "target",
    type=click.Path(dir_okay=False, readable=False, allow_dash=True),
    default="-",
    help="Archive; by default standard output.",
)
@json_option
def export_command(
    paths: tuple[Path, ...],
    index_path: Path | None,
    namespace: str | None,
    target: str,
    as_json: bool,
) -> int:
    """Write the chunks of the store at PATH to a tar archive, each with its checksum.

    The store may be open. Chunks that it removes meanwhile are left out; damaged ones are named.
    """
    for path in paths:
        facts_of(path, index_path)
    tell_further_paths(paths, index_path)
    if namespace is not None:
        need_namespace(paths, index_path, namespace)
    with _opened(target) as output:
        if output.isatty():
            message = "an archive is binary: use --output FILE, or a pipe"
            raise Failure(message)
        writer = Writer(output)
        with _cut_short(writer, target):
            left_out = [one for path in paths for one in _add(writer, path, index_path, namespace)]
            writer.end(namespace=namespace)
            output.flush()
    counts = {"chunks": writer.chunks, "size_bytes": writer.size_bytes, "left_out": len(left_out)}
    text = f"{count_text(writer.chunks, 'chunk')}, {size_text(writer.size_bytes)}"
    click.echo(json.dumps(counts) if as_json else text, err=True)
    if left_out:
        raise PartialSuccess(*left_out)
    return 0


def _opened(target: str) -> AbstractContextManager[IO[bytes]]:
    """Open what an archive goes to. One that is made is its user's alone, as the store is."""
    if target == "-":
        return click.open_file(target, "wb")
    try:
        return open(target, "wb", opener=lambda path, flags: os.open(path, flags, 0o600))
    except OSError as error:
        raise Failure(f"--output {target!r} cannot be written: {error.strerror}") from error


@contextmanager
def _cut_short(writer: Writer, target: str) -> Iterator[None]:
    """Have it said how far an archive goes that cannot be written to its end.

    Raises:
        Failure: Instead of the errors of the system.
    """
    try:
        yield
    except OSError as error:
        where = "the standard output" if target == "-" else target
        why = "its reader is gone" if isinstance(error, BrokenPipeError) else error.strerror
        behind = f"the archive is cut short behind {count_text(writer.chunks, 'chunk')}"
        raise Failure(f"{where} cannot be written: {why}; {behind}") from error


def _add(
    writer: Writer, path: Path, index_path: Path | None, namespace: str | None
) -> Iterator[str]:
    """Add the chunks of a path; yield a sentence on each that is broken."""

    def chosen(chunks: StoredChunks) -> Iterator[dict[str, Any]]:
        return (chunk for chunk in chunks if namespace in (None, chunk["namespace"]))

    with said_well(path):
        total_bytes = sum(chunk["length_bytes"] for chunk in chosen(StoredChunks(path, index_path)))
        chunks = StoredChunks(path, index_path)
        with progress(f"reading {path}", total_bytes) as advance:
            for chunk in chosen(chunks):
                condition, reason, content = chunks.read(keep=True)
                advance(chunk["length_bytes"])
                if content is not None:
                    writer.add(chunk["key"], content, chunk["created_ms"], chunk["variant"])
                elif condition != "gone":
                    why = f" ({reason})" if reason else ""
                    yield f"{path}: {chunk['key']!r} is {condition}{why}, and left out"
        yield from (f"{path}: {sentence}" for sentence in chunks.damage())
