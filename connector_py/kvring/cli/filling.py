"""`kvring import` and `adopt`: chunks into a store."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from kvring._native import ANY_VARIANT
from kvring.cli.archive import ArchiveError, Reader
from kvring.cli.consent import consent_options, has_consent, losses_of_open
from kvring.cli.failure import Failure, PartialSuccess
from kvring.cli.lmcache_files import EXPECTED_NAMES, ChunkFile, chunk_files
from kvring.cli.opening import opened, store_chunks, store_options
from kvring.cli.output import count_text, print_json, size_text
from kvring.cli.parameters import ReadablePath, capacities_option, capacity_of_each, json_option
from kvring.cli.progress import Advance, progress
from kvring.cli.stores import index_path_option, store_paths

__all__ = ["adopt", "import_command"]

_EPILOG = """
Exit status: 1 if no chunk is stored, 4 if some are not, or others were evicted.
"""

_Arguments = dict[str, Any]

# Reasons for which chunks were not stored; each has sizes and paths in it.
_MOST_REASONS = 5


def _store_to_fill(command: Any) -> Any:
    """Give a command the arguments of a store that may be new."""
    layout = click.option(
        "--layout", type=click.Choice(["extents", "files"]), help="Layout of a new store."
    )
    filled = capacities_option(layout(consent_options(json_option(command))))
    return store_paths(index_path_option(filled))


@click.command("import", epilog=_EPILOG, short_help="Store the chunks of an archive.")
@_store_to_fill
@click.option(
    "--input",
    "source",
    type=ReadablePath(exists=True, dir_okay=False, allow_dash=True),
    default="-",
    help="Archive; by default standard input.",
)
def import_command(source: str, **arguments: Any) -> int:
    """Store the chunks of an archive of `kvring export` in the store at PATH.

    The store may be new, and must be closed. Each chunk is verified; a truncated archive is
    imported as far as it goes. Without --yes nothing is evicted.
    """
    faults: list[str] = []
    with click.open_file(source, "rb") as stream:
        try:
            reader = Reader(stream)
        except ArchiveError as error:
            raise Failure(str(error)) from error
        if (options := _options(arguments)) is None:
            return 0
        with progress("storing", None) as advance:
            stored = _fill(arguments, options, _counted(_whole(reader, faults), advance), faults)
    faults += (f"{key!r} is damaged in the archive: left out" for key in reader.damaged)
    return _status(stored, faults)


@click.command(
    epilog=f"{EXPECTED_NAMES}\n{_EPILOG}",
    short_help="Store the files of LMCache's fs or fs_native.",
)
@click.argument("directory", type=ReadablePath(exists=True, file_okay=False, path_type=Path))
@_store_to_fill
@click.option(
    "--move", is_flag=True, help="Remove each file when its chunk is durable; evicts nothing."
)
def adopt(directory: Path, move: bool, **arguments: Any) -> int:
    """Store the files of LMCache's fs or fs_native in DIRECTORY, its base_path.

    Stop LMCache first. The store at PATH may be new, and must be closed. Without --yes nothing is
    evicted: files without room stay.
    """
    found, others = chunk_files(directory)
    if not found:
        raise Failure(
            f"{directory} has no chunk of LMCache's fs or fs_native, and "
            f"{count_text(others, 'other file')}. {EXPECTED_NAMES}"
        )
    size_bytes = sum(one.size_bytes for one in found)
    held = f"{count_text(len(found), 'chunk')}, {size_text(size_bytes)}"
    click.echo(f"{directory} has {held}", err=True)
    if (options := _options(arguments)) is None:
        return 0
    file_of = {one.key: one.path for one in found}
    when_durable = None
    if move:
        # What was moved exists nowhere else: it must not be evicted for the next one.
        options |= {"durability": "persistent", "_never_evicts": True}

        def when_durable(key: str) -> None:
            file_of[key].unlink(missing_ok=True)

    faults: list[str] = []
    with progress("storing", size_bytes) as advance:
        chunks = _counted(_contents(found, faults), advance)
        stored = _fill(arguments, options, chunks, faults, when_durable)
    if others:
        click.echo(f"left alone in {directory}: {count_text(others, 'other file')}", err=True)
    return _status(stored, faults)


def _status(stored: int, faults: list[str]) -> int:
    if faults:
        raise (PartialSuccess if stored else Failure)(*faults)
    return 0


def _whole(reader: Reader, faults: list[str]) -> Iterator[tuple[str, bytes, int]]:
    try:
        yield from reader
    except ArchiveError as error:
        faults.append(str(error))


def _contents(files: list[ChunkFile], unreadable: list[str]) -> Iterator[tuple[str, bytes, int]]:
    for one in files:
        try:
            content = one.path.read_bytes()
        except OSError as error:
            unreadable.append(f"{one.path} cannot be read: {error.strerror}")
            continue
        if content:
            # The file does not tell what it is: who adopts it vouches for that.
            yield one.key, content, ANY_VARIANT
        else:
            unreadable.append(f"{one.path} is empty")


def _counted(
    chunks: Iterable[tuple[str, bytes, int]], advance: Advance
) -> Iterator[tuple[str, bytes, int]]:
    for chunk in chunks:
        advance(len(chunk[1]))
        yield chunk


def _fill(
    arguments: _Arguments,
    options: dict[str, Any],
    chunks: Iterable[tuple[str, bytes, int]],
    faults: list[str],
    when_durable: Callable[[str], None] | None = None,
) -> int:
    """Store chunks, say how many, and return that. What is refused is added to `faults`."""
    paths = arguments["paths"]
    stored = 0
    # The keys by reason.
    refused: dict[str, list[str]] = {}
    with opened(paths, **options) as store:
        before = store.stats()
        for key, reason in store_chunks(store, chunks):
            if reason is not None:
                refused.setdefault(reason, []).append(key)
                continue
            stored += 1
            if when_durable is not None:
                when_durable(key)
        after = store.stats()
    evicted = after["evicted"] - before["evicted"]
    refused_count = sum(map(len, refused.values()))
    if arguments["as_json"]:
        print_json(
            {
                "stored": stored,
                "refused": refused_count,
                "evicted": evicted,
                "keys": after["keys"],
                "stored_bytes": after["stored_bytes"],
            }
        )
    else:
        click.echo(
            f"stored {count_text(stored, 'chunk')}; {paths[0]} holds {after['keys']:,}, "
            f"{size_text(after['stored_bytes'])}"
        )
    for reason, keys in list(refused.items())[:_MOST_REASONS]:
        message = count_text(len(keys), "chunk was not stored", "chunks were not stored")
        faults.append(f"{message}, such as {keys[0]!r}: {reason}")
    if refused:
        message = f"{refused_count:,} in all were not stored"
        faults.append(f"{message}; where room was short give more --capacity")
    if evicted:
        message = count_text(evicted, "chunk was evicted", "chunks were evicted")
        faults.append(f"{message} for want of room; give more --capacity to keep all")
    return stored


def _options(arguments: _Arguments) -> dict[str, Any] | None:
    """Return the options of a store that is there, or of a new one; None if that is all.

    Raises:
        Failure: Somebody has it open, it has further paths, it cannot be read, or chunks would be
            removed without a terminal to confirm it.
    """
    paths, index_path, layout = (arguments[name] for name in ("paths", "index_path", "layout"))
    yes, dry_run, as_json = (arguments[name] for name in ("yes", "dry_run", "as_json"))
    options: dict[str, Any] = {
        "capacity": capacity_of_each(paths, arguments["capacities"]),
        "ttl": "off",
        "admit": "always",
        **({} if layout is None else {"layout": layout}),
    }
    if index_path is not None:
        options["index_path"] = str(index_path)
    losses, new = losses_of_open(paths, **options)
    if present := [path for path in paths if path not in new]:
        options = {**store_options(present, index_path), **options}
    if not has_consent(losses, yes=yes, dry_run=dry_run, as_json=as_json):
        return None
    return {**options, "_never_evicts": not yes}
