"""What readers of a store do in these tests, and what of them is left."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from kvring.ranks import Reader
from kvring.ranks.reader import _Link
from tests.python.conftest import HANG_DEADLINE_S
from tests.python.ranks.owners import PREFIX, Memory, content_of

_T = TypeVar("_T")


def load(
    reader: Reader, keys: Sequence[str], lengths: Sequence[int], version: int = 0
) -> list[bool | None]:
    """Load keys with parts of these lengths; None is one that is said to be there, and is not."""
    memory = Memory(len(keys) * list(lengths))
    loaded = reader.load(PREFIX, list(keys), memory.addresses, memory.lengths)
    assert len(loaded) == len(keys)
    assert memory.is_intact_around()
    parts = len(lengths)
    answers: list[bool | None] = []
    for number, (key, ok) in enumerate(zip(keys, loaded, strict=True)):
        blocks = memory.blocks[number * parts : (number + 1) * parts]
        is_right = all(
            block == content_of(key, part, len(block), version) for part, block in enumerate(blocks)
        )
        answers.append((is_right or None) if ok else False)
    return answers


@contextmanager
def at_the_same_time(*works: Callable[[], object]) -> Iterator[None]:
    """Run all in threads of their own while the block runs, and wait; raise what one raises."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end_s = time.monotonic() + HANG_DEADLINE_S
        for thread in threads:
            thread.join(max(end_s - time.monotonic(), 0.0))
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "it hangs"


def bounded(work: Callable[[], _T]) -> _T:
    """Return what a work returns, which must not hang.

    It runs in a thread of its own, and readers have a connection for each thread: what is to be
    done on one connection belongs into one work.
    """
    results: list[_T] = []
    with at_the_same_time(lambda: results.append(work())):
        pass
    return results[0]


def load_request(keys: Sequence[str], lengths: Sequence[int]) -> dict[str, Any]:
    """Return the request for one piece, keys with parts of these lengths."""
    return {"load": [PREFIX, list(keys), len(keys) * list(lengths)]}


def send_at_once(link: _Link, *requests: dict[str, Any]) -> None:
    """Send requests of which the owner finds all as soon as it finds one."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    link._connection.sendall(lines.encode())


@contextmanager
def holding(path: Path, keys: Sequence[str], lengths: Sequence[int]) -> Iterator[None]:
    """Have a segment for each key while the block runs, as a reader has before it copies."""
    links = [_Link(path, None) for _ in keys]
    try:
        for link, key in zip(links, keys, strict=True):
            link.send(load_request([key], lengths))
            assert link.receive()[0] is not None
        yield
    finally:
        for link in links:
            link.close()


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvring-reads"]


def sockets() -> int:
    """Return how many sockets this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(descriptor.readlink().name)
    return sum(name.startswith("socket:") for name in names)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
