"""`kvring verify`: read every chunk, and compare it with its checksum."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from kvring._native import StoredChunks
from kvring.cli.failure import Failure
from kvring.cli.opening import delete_keys, store_options, unchanged
from kvring.cli.output import count_text, print_json, printable, size_text
from kvring.cli.parameters import POSITIVE_SIZE, json_option
from kvring.cli.progress import progress
from kvring.cli.stores import index_path_option, said_well, store_paths, tell_further_paths

__all__ = ["verify"]

_MOST_SHOWN = 20

# What reading a chunk may show, and why it is broken then.
_BROKEN = {
    "damaged": "its bytes are not those that were stored",
    "unreadable": "the drive does not return it",
}


@dataclass
class _Findings:
    """What was found in all the stores."""

    conditions: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    broken: list[dict[str, Any]] = field(default_factory=list)
    index: list[str] = field(default_factory=list)

    @property
    def are_good(self) -> bool:
        return not self.broken and not self.index


@click.command(short_help="Verify the checksum of every chunk.")
@store_paths
@index_path_option
@click.option(
    "--rate",
    type=POSITIVE_SIZE,
    default="500MiB",
    show_default=True,
    help="Maximum bytes to read per second.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Remove what is damaged from a closed store; takes all its paths.",
)
@json_option
def verify(
    paths: tuple[Path, ...], index_path: Path | None, rate: int, repair: bool, as_json: bool
) -> int:
    """Verify the checksum of every chunk of the store at PATH, past the page cache.

    The store may be open, without --repair. Loads of a damaged chunk miss.
    """
    if repair:
        store_options(paths, index_path)
    else:
        tell_further_paths(paths, index_path)
    found = _Findings()
    for path in paths:
        with _noted_in(found.index) if len(paths) > 1 else nullcontext(), said_well(path):
            _read_all(found, path, index_path, rate)
    left = found.index
    if repair and not found.are_good:
        with unchanged(paths, index_path) as store:
            delete_keys(store, _still_there(found.broken, paths, index_path))
        left = [sentence for path in paths for sentence in _index_damage(path, index_path)]
    if as_json:
        removed = len(found.broken) if repair else 0
        print_json({**_counts(found), "broken": found.broken, "index": left, "removed": removed})
    else:
        _print(found, left, is_repaired=repair)
    return 0 if found.are_good or (repair and not left) else 1


@contextmanager
def _noted_in(sentences: list[str]) -> Iterator[None]:
    """Go on after a path that is away: it hides nothing of the others."""
    try:
        yield
    except Failure as failure:
        sentences.extend(failure.sentences)


def _read_all(found: _Findings, path: Path, index_path: Path | None, rate: int) -> None:
    total_bytes = sum(chunk["length_bytes"] for chunk in StoredChunks(path, index_path))
    chunks = StoredChunks(path, index_path, most_bytes_per_s=rate)
    with progress(f"reading {path}", total_bytes) as advance:
        for chunk in chunks:
            condition, reason, _ = chunks.read(keep=False)
            found.conditions[condition] += 1
            found.read_bytes += chunk["length_bytes"]
            if condition in _BROKEN:
                chunk["file"] = str(path / chunk["file"])
                why = reason or _BROKEN[condition]
                found.broken.append({**chunk, "condition": condition, "reason": why})
            advance(chunk["length_bytes"])
    found.index += [f"{path}: {sentence}" for sentence in chunks.damage()]


def _still_there(
    broken: list[dict[str, Any]], paths: Iterable[Path], index_path: Path | None
) -> list[str]:
    """Return the keys whose chunks are those that were read: an owner may have come between."""
    known = {_identity(chunk) for chunk in broken}
    found = []
    for path in paths:
        for chunk in StoredChunks(path, index_path):
            chunk["file"] = str(path / chunk["file"])
            if _identity(chunk) in known:
                found.append(chunk["key"])
    return found


def _identity(chunk: dict[str, Any]) -> tuple[str, str, int, int]:
    return chunk["key"], chunk["file"], chunk["offset_bytes"], chunk["created_ms"]


def _index_damage(path: Path, index_path: Path | None) -> list[str]:
    chunks = StoredChunks(path, index_path)
    for _ in chunks:
        pass
    return [f"{path}: {sentence}" for sentence in chunks.damage()]


def _counts(found: _Findings) -> dict[str, int]:
    conditions = ("intact", "unchecked", "damaged", "unreadable", "gone")
    return {
        "chunks": found.conditions.total(),
        "read_bytes": found.read_bytes,
        **{condition: found.conditions[condition] for condition in conditions},
    }


def _print(found: _Findings, left: list[str], *, is_repaired: bool) -> None:
    counts = _counts(found)
    click.echo(
        f"{count_text(counts['chunks'], 'chunk')}, {size_text(found.read_bytes)} read: "
        f"{counts['intact']:,} as they were stored, {counts['unchecked']:,} without a checksum, "
        f"{counts['damaged']:,} damaged, {counts['unreadable']:,} unreadable"
        + (f", {counts['gone']:,} gone meanwhile" if counts["gone"] else "")
    )
    for chunk in found.broken[:_MOST_SHOWN]:
        where = f"{chunk['file']}+{chunk['offset_bytes']}"
        click.echo(
            f"{chunk['condition']}: {json.dumps(chunk['key'])} in {printable(where)}: "
            f"{printable(chunk['reason'])}"
        )
    if len(found.broken) > _MOST_SHOWN:
        click.echo(f"and {len(found.broken) - _MOST_SHOWN:,} more: --json lists all")
    if found.broken:
        click.echo(
            count_text(len(found.broken), "chunk was removed", "chunks were removed")
            if is_repaired
            else "their loads miss; --repair removes them"
        )
    if is_repaired and found.index and not left:
        click.echo("the index was damaged, and is repaired:")
    for sentence in found.index if is_repaired and not left else left:
        click.echo(printable(sentence))
