"""Stores that a command opens as their owner: those that nobody else has."""

import select
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvring import ConfigError, Connector, KvRingError
from kvring.cli.consent import losses_of_open
from kvring.cli.disk import check_not_frozen
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.stores import facts_of, further_paths

__all__ = [
    "delete_keys",
    "facts_of_all",
    "opened",
    "options_of",
    "refuse_in_use",
    "store_chunks",
    "store_options",
    "unchanged",
]

# No chunk that can be stored is longer than an eighth of it.
_LEAST_CAPACITY_BYTES = 16 << 30
_MOST_BYTES_UNDER_WAY = 64 << 20
_MOST_KEYS_UNDER_WAY = 256
# Commands wait for the answers: what is left is to make all durable.
_CLOSE_TIMEOUT_S = 120.0


def refuse_in_use(paths: Iterable[Path], index_path: Path | None) -> None:
    """Look whether somebody has a store open, before long work.

    Raises:
        Failure: Somebody has, or there is no store.
    """
    for path in paths:
        if holder := facts_of(path, index_path)["holder"]:
            raise Failure(f"{path} is open in {holder}; stop that first")


@contextmanager
def opened(paths: Sequence[Path], **options: Any) -> Iterator[Connector]:
    """Lend a store, opened with these options, and close it in order.

    Raises:
        Failure: It cannot be opened, somebody has it open, or it could not be closed in order.
    """
    try:
        for directory in (*paths, *([options["index_path"]] if "index_path" in options else [])):
            check_not_frozen(Path(directory))
        store = Connector([str(path) for path in paths], **options)
    except ConfigError as error:
        raise WrongArguments(str(error)) from error
    except (KvRingError, OSError) as error:
        raise Failure(str(error)) from error
    with store:
        yield store
        closed = store.close(timeout_s=_CLOSE_TIMEOUT_S)
        if closed["partial_flush"] or not closed["shutdown_clean"]:
            raise Failure(f"{paths[0]} could not be closed in order: the log tells why")


def store_options(paths: Sequence[Path], index_path: Path | None) -> dict[str, Any]:
    """Return the options that follow from a store that is there.

    Raises:
        Failure: There is none, somebody has it open, or it has further paths: opened without these
            it would go on alone, and they would be emptied.
    """
    refuse_in_use(paths, index_path)
    return options_of(facts_of_all(paths, index_path), index_path)


def options_of(facts: Sequence[dict[str, Any]], index_path: Path | None) -> dict[str, Any]:
    """Return the options that follow from what a store says of itself."""
    options = {} if index_path is None else {"index_path": str(index_path)}
    for one in facts:
        # A block device has none.
        if one["layout"] is not None:
            options["layout"] = one["layout"]
    return options


def facts_of_all(paths: Sequence[Path], index_path: Path | None) -> list[dict[str, Any]]:
    """Return what the paths of a store say of themselves.

    Raises:
        Failure: There is no store, or it has further paths.
    """
    facts = [facts_of(path, index_path) for path in paths]
    if sentence := further_paths(facts):
        raise Failure(sentence)
    return facts


@contextmanager
def unchanged(paths: Sequence[Path], index_path: Path | None) -> Iterator[Connector]:
    """Lend a store that loses nothing by being opened: nothing expires, is evicted or moves.

    Raises:
        Failure: As of `opened`; there is no store; it would lose chunks all the same.
    """
    options = store_options(paths, index_path)
    capacity = [_holding_capacity(path) for path in paths]
    # Nor are these capacities those by which the paths share the keys.
    options |= {"ttl": "off", "min_free": 0, "_keeps_misplaced": True}
    losses, _ = losses_of_open(paths, capacity=capacity, **options)
    if losses.keys:
        raise Failure(
            *losses.sentences, "nothing was changed; open the store as its server does, first"
        )
    with opened(paths, capacity=capacity, **options) as store:
        yield store


def _holding_capacity(path: Path) -> int | str:
    """Return one that has room for all that is there."""
    if path.is_block_device():
        return "all"
    taken_bytes = sum(one.lstat().st_size for one in path.rglob("*"))
    return taken_bytes + max(_LEAST_CAPACITY_BYTES, shutil.disk_usage(path).free)


def store_chunks(
    store: Connector, chunks: Iterable[tuple[str, bytes, int]]
) -> Iterator[tuple[str, str | None]]:
    """Store chunks, a few at a time; yield of each key why it is not stored, in any order.

    That is None if it is stored.
    """
    poll = select.poll()
    poll.register(store.event_fd(), select.POLLIN)
    under_way: dict[int, tuple[str, int]] = {}
    bytes_under_way = 0

    def completed() -> Iterator[tuple[str, str | None]]:
        nonlocal bytes_under_way
        poll.poll()
        for future_id, _, error, results in store.drain_completions():
            key, size_bytes = under_way.pop(future_id)
            bytes_under_way -= size_bytes
            yield key, None if results[0] else error or "it was not admitted"

    for key, content, variant in chunks:
        while under_way and (
            bytes_under_way + len(content) > _MOST_BYTES_UNDER_WAY
            or len(under_way) >= _MOST_KEYS_UNDER_WAY
        ):
            yield from completed()
        under_way[store.submit_batch_set([key], [content], variants=[variant])] = (
            key,
            len(content),
        )
        bytes_under_way += len(content)
    while under_way:
        yield from completed()


def delete_keys(store: Connector, keys: list[str]) -> None:
    """Delete keys, and wait for it."""
    poll = select.poll()
    poll.register(store.event_fd(), select.POLLIN)
    store.submit_batch_delete(keys)
    while not store.drain_completions():
        poll.poll()
