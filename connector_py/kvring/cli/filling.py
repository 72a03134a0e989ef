"""`kvring import` and `adopt`: chunks into a store."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from kvring import KvRingError
from kvring._native import StoredChunks
from kvring.cli.archive import ArchiveError, Reader
from kvring.cli.failure import Failure
from kvring.cli.lmcache_files import ChunkFile, chunk_files
from kvring.cli.opening import opened, store_chunks, store_options
from kvring.cli.output import print_json, size_text
from kvring.cli.parameters import SIZE, json_option
from kvring.cli.progress import Advance, progress
from kvring.cli.stores import bytes_stored, index_path_option, store_paths

__all__ = ["adopt", "import_command"]

_EPILOG = """
Exit status: 0 if all chunks are stored, 1 if some are not, 2 for wrong arguments.
"""

_Arguments = dict[str, Any]


def _store_to_fill(command: Any) -> Any:
    """Give a command the arguments of a store that may be new."""
    capacity = click.option(
        "--capacity",
        type=SIZE,
        required=True,
        help="Capacity of the store at each path, as in LMCache's JSON.",
    )
    layout = click.option(
        "--layout", type=click.Choice(["extents", "files"]), help="Layout of a store that is new."
    )
    return store_paths(index_path_option(capacity(layout(json_option(command)))))


@click.command("import", epilog=_EPILOG, short_help="Store the chunks of an archive.")
@_store_to_fill
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    help="Where from; by default the standard input.",
)
def import_command(source: str, **arguments: Any) -> int:
    """Store what `kvring export` has written in the store at PATH, which may be new.

    Nobody may have it open. Each chunk is compared with its checksum. What an archive that was cut
    short holds is stored all the same.
    """
    with click.open_file(source, "rb") as stream:
        try:
            reader = Reader(stream)
            with progress("storing", None) as advance:
                _fill(arguments, _counted(reader, advance))
        except ArchiveError as error:
            raise Failure(str(error)) from error
    if reader.damaged:
        raise Failure(*(f"{key!r} is damaged in the archive: left out" for key in reader.damaged))
    return 0


@click.command(epilog=_EPILOG, short_help="Store what LMCache's fs or fs_native has kept.")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_store_to_fill
@click.option("--move", is_flag=True, help="Remove each file when its chunk withstands power loss.")
def adopt(directory: Path, move: bool, **arguments: Any) -> int:
    """Store the chunks that LMCache's adapter fs or fs_native keeps in DIRECTORY, its base_path.

    The store at PATH may be new; nobody may have it open, and LMCache must not be using DIRECTORY.
    The chunk that was written last is evicted last. Other files are left alone.
    """
    found, others = chunk_files(directory)
    if not found:
        message = (
            f"{directory} has no chunk of LMCache's fs or fs_native, and {others:,} other files"
        )
        raise Failure(message)
    file_of = {one.key: one.path for one in found}
    unreadable: list[str] = []
    with progress("storing", sum(one.size_bytes for one in found)) as advance:
        _fill(
            arguments,
            _counted(_contents(found, unreadable), advance),
            (lambda key: file_of[key].unlink(missing_ok=True)) if move else None,
        )
    if others:
        click.echo(f"{others:,} other files of {directory} were left alone", err=True)
    if unreadable:
        raise Failure(*unreadable)
    return 0


def _contents(files: list[ChunkFile], unreadable: list[str]) -> Iterator[tuple[str, bytes]]:
    for one in files:
        try:
            content = one.path.read_bytes()
        except OSError as error:
            unreadable.append(f"{one.path} cannot be read: {error.strerror}")
            continue
        if content:
            yield one.key, content
        else:
            unreadable.append(f"{one.path} is empty")


def _counted(chunks: Iterable[tuple[str, bytes]], advance: Advance) -> Iterator[tuple[str, bytes]]:
    for key, content in chunks:
        advance(len(content))
        yield key, content


def _fill(
    arguments: _Arguments,
    chunks: Iterable[tuple[str, bytes]],
    when_durable: Callable[[str], None] | None = None,
) -> None:
    """Store chunks, and say how many: what is refused is an error at the end."""
    paths, options = arguments["paths"], _options(arguments)
    if when_durable is not None:
        options["durability"] = "persistent"
    stored, refused = 0, []
    with opened(paths, ttl="off", **options) as store:
        before = store.stats()
        for key, is_stored in store_chunks(store, chunks):
            if not is_stored:
                refused.append(key)
                continue
            stored += 1
            if when_durable is not None:
                when_durable(key)
        after = store.stats()
    evicted = after["evicted"] - before["evicted"]
    if arguments["as_json"]:
        print_json(
            {
                "stored": stored,
                "refused": len(refused),
                "evicted": evicted,
                "keys": after["keys"],
                "stored_bytes": after["stored_bytes"],
            }
        )
    else:
        click.echo(
            f"stored {stored:,} chunks; {paths[0]} holds {after['keys']:,}, "
            f"{size_text(after['stored_bytes'])}"
            + (f"; {evicted:,} were evicted for want of space" if evicted else "")
        )
    if refused:
        raise Failure(*(f"{key!r} was not stored: the log tells why" for key in refused))


def _options(arguments: _Arguments) -> dict[str, Any]:
    """Return the options of a store that is there, or of a new one.

    Raises:
        Failure: Somebody has it open, it has further paths, or it does not fit the capacity.
    """
    paths, index_path = arguments["paths"], arguments["index_path"]
    capacity, layout = arguments["capacity"], arguments["layout"]
    options = {"capacity": capacity, **({} if layout is None else {"layout": layout})}
    if index_path is not None:
        options["index_path"] = str(index_path)
    present = [path for path in paths if _is_store(path, index_path)]
    if not present:
        return options
    for path in present:
        if (stored_bytes := bytes_stored(path, index_path)) > capacity:
            message = (
                f"{path} holds {size_text(stored_bytes)}, and the capacity is {size_text(capacity)}"
                ": chunks would be evicted; if that is wanted, `kvring resize` does it"
            )
            raise Failure(message)
    return {**options, **store_options(present, index_path), **options}


def _is_store(path: Path, index_path: Path | None) -> bool:
    try:
        StoredChunks(path, index_path)
    except (KvRingError, OSError):
        # What it is instead, the open tells.
        return False
    return True
