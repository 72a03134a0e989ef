"""Stores as commands read them: by their index, without a lock."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from kvring import KvRingError
from kvring._native import StoredChunks
from kvring.cli.disk import check_disk
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.output import OUTPUT_ERRORS, printable
from kvring.cli.parameters import STORE_PATH
from kvring.cli.users import whose

__all__ = [
    "facts_of",
    "further_paths",
    "index_path_option",
    "listed_namespaces",
    "look_at_each",
    "missing_namespace",
    "need_namespace",
    "one_path",
    "said_well",
    "store_arguments",
    "store_paths",
    "tell_further_paths",
]

_MOST_SHOWN = 20

_T = TypeVar("_T")
_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])

index_path_option = click.option(
    "--index-path",
    type=STORE_PATH,
    metavar="DIRECTORY",
    help="Directory of the index of a block device (option index_path).",
)


def _once(
    context: click.Context, parameter: click.Parameter, paths: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Refuse a path that is named twice: its chunks would be counted, or archived, twice.

    No disk is looked at.
    """
    for path, count in Counter(os.path.normpath(path.absolute()) for path in paths).items():
        if count > 1:
            raise click.BadParameter(f"{path} is named {count} times", context, parameter)
    return paths


store_paths = click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=STORE_PATH, callback=_once
)


def _only(
    _context: click.Context, _parameter: click.Parameter, paths: tuple[Path, ...]
) -> Path | None:
    """Return the path; refuse further ones with the way out."""
    if len(paths) > 1:
        raise WrongArguments(f"it takes one PATH, and {len(paths)} are given: run it for each")
    return paths[0] if paths else None


def one_path(*, is_required: bool = True) -> Callable[[_CommandT], _CommandT]:
    """Give a command the argument `path`, of which there is one."""
    metavar = "PATH" if is_required else "[PATH]"
    return click.argument(
        "path",
        nargs=-1,
        metavar=metavar,
        type=STORE_PATH,
        required=is_required,
        callback=_only,
    )


def store_arguments(command: Any) -> Any:
    """Give a command the arguments `path` and `index_path`."""
    return one_path()(index_path_option(command))


@contextmanager
def _chunks_of(path: Path, index_path: Path | None) -> Iterator[StoredChunks]:
    """Lend the chunks of a store; say what of it is broken at the end.

    Raises:
        Failure: There is no store, its index cannot be read, or something of it is broken.
    """
    with said_well(path):
        chunks = StoredChunks(path, index_path)
        yield chunks
    if broken := chunks.damage():
        raise Failure(*(f"{path}: {sentence}" for sentence in broken))


def look_at_each(
    paths: Sequence[Path], index_path: Path | None, look: Callable[[Path, StoredChunks], _T]
) -> tuple[list[_T], list[str]]:
    """Look at the chunks of each path, and say which paths of the store are not named.

    Returns:
        What `look` returned of each path that could be read, and a sentence on each thing that is
        broken: it keeps nobody from the other paths.
    """
    tell_further_paths(paths, index_path)
    found: list[_T] = []
    faults: list[str] = []

    def look_at(path: Path) -> None:
        try:
            with _chunks_of(path, index_path) as chunks:
                found.append(look(path, chunks))
        except Failure as failure:
            faults.extend(failure.sentences)

    for path in paths:
        look_at(path)
    return found, faults


def further_paths(facts: Iterable[dict[str, Any]]) -> str | None:
    """Return a sentence on the paths of a store that are not among these; None if all are."""
    facts = list(facts)
    members = {member["store_id"]: member["path"] for one in facts for member in one["members"]}
    named = {one["store_id"] for one in facts}
    missing = [path for store_id, path in members.items() if store_id not in named]
    if not missing:
        return None
    names = sorted(path for path in missing if path is not None)
    if unknown := len(missing) - len(names):
        names.append(f"{unknown} {'other' if unknown == 1 else 'others'}, as LMCache's JSON has it")
    return f"the store has {len(members)} paths; name also {', '.join(names)}"


def tell_further_paths(paths: Sequence[Path], index_path: Path | None) -> None:
    """Say on standard error which paths of the store a command that changes nothing leaves out."""
    facts = []
    for path in paths:
        # The command itself says what is wrong with it.
        with suppress(Failure):
            facts.append(facts_of(path, index_path))
    if sentence := further_paths(facts):
        command = click.get_current_context().command_path
        click.echo(f"{command}: {printable(sentence)}", err=True)


def facts_of(path: Path, index_path: Path | None) -> dict[str, Any]:
    """Return what a store says of itself.

    Raises:
        Failure: There is no store, or its index cannot be read.
    """
    with said_well(path):
        return StoredChunks(path, index_path).facts()


def listed_namespaces(paths: Sequence[Path], index_path: Path | None) -> dict[str, tuple[int, int]]:
    """Return how many chunks each namespace has by the index files, and their bytes.

    Raises:
        Failure: There is no store, or its index cannot be read.
    """
    keys: Counter[str] = Counter()
    size_bytes: Counter[str] = Counter()
    for path in paths:
        with said_well(path):
            for chunk in StoredChunks(path, index_path):
                keys[chunk["namespace"]] += 1
                size_bytes[chunk["namespace"]] += chunk["length_bytes"]
    return {name: (count, size_bytes[name]) for name, count in keys.items()}


def need_namespace(paths: Sequence[Path], index_path: Path | None, name: str) -> None:
    """Go on if a store has chunks of a namespace.

    Raises:
        Failure: It has none, there is no store, or its index cannot be read.
    """
    there = listed_namespaces(paths, index_path)
    if name not in there:
        raise missing_namespace(paths, "namespace", name, there)


def missing_namespace(
    paths: Sequence[Path], what: str, name: str, there: dict[str, tuple[int, int]]
) -> Failure:
    """Return that a store has no namespace or model of a name, with those that it has."""
    largest = sorted(there, key=lambda one: there[one], reverse=True)[:_MOST_SHOWN]
    more = f" and {len(there) - len(largest):,} more" if len(there) > len(largest) else ""
    others = f"there are {', '.join(map(repr, largest))}{more}" if there else "the store is empty"
    return Failure(f"{paths[0]} has no {what} {name!r}; {others}")


@contextmanager
def said_well(path: Path) -> Iterator[None]:
    """Have what goes wrong with the store at `path` said in a sentence.

    Raises:
        Failure: Instead of the errors of the system and of kvring; the disk is stuck.
    """
    try:
        check_disk(path)
        yield
    except FileNotFoundError as error:
        raise Failure(_missing(path, error)) from error
    except NotADirectoryError:
        raise Failure(f"{path} is no store: it is neither a directory nor a block device") from None
    except BrokenPipeError:
        raise
    except PermissionError:
        raise Failure(whose(path)) from None
    except OSError as error:
        if error.errno in OUTPUT_ERRORS:
            raise
        raise Failure(error.strerror or str(error)) from error
    except KvRingError as error:
        raise Failure(str(error)) from error


def _missing(path: Path, error: OSError) -> str:
    if not path.exists():
        return f"there is no store in {path}: nothing is there"
    if path.is_dir():
        return f"there is no store in {path}: it has no index.kvring"
    return error.strerror or str(error)
