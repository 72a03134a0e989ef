"""A store in a process of its own, which can be killed at any moment."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import multiprocessing
import random
import select
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from kvring import Connector
from kvring.cli import main

__all__ = ["HANG_DEADLINE_S", "Chunk", "StoreDiedError", "StoreProcess", "content"]

# What takes longer than this is a hang; nothing here takes more than seconds.
HANG_DEADLINE_S = 120.0

Chunk: TypeAlias = tuple[int, int]
"""What tells the bytes of a chunk: their version, and their length."""

_NOISE = random.Random(1).randbytes(1 << 20)


def content(key: str, chunk: Chunk) -> bytes:
    """Return the bytes of a chunk: others for each key, version and place."""
    version, length_bytes = chunk
    start = hash_of(key, version) % len(_NOISE)
    head = f"{key} {version} {length_bytes} ".encode()
    whole = head + _NOISE[start:] + _NOISE * (length_bytes // len(_NOISE) + 1)
    return whole[:length_bytes]


def hash_of(key: str, version: int) -> int:
    """Return a number that is the same in each process."""
    return int.from_bytes(random.Random(f"{key} {version}").randbytes(4), "little")


class StoreDiedError(Exception):
    """The process of the store ended by itself, or hangs."""


class StoreProcess:
    """Calls the methods of `_Store` in another process, which lives on when its store is closed."""

    def __init__(self) -> None:
        """Start the process: a fork of one that has imported all, and has no store."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    @property
    def process_id(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, and return what it returns.

        Raises:
            StoreDiedError: The process is gone, or does not answer.
            Exception: What the method raises.
        """
        self.begin(method, *arguments)
        try:
            if not self._connection.poll(HANG_DEADLINE_S):
                raise StoreDiedError(f"{method} does not return")
            outcome = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(1)
            message = f"in {method} the process ended: {self._process.exitcode}"
            raise StoreDiedError(message) from error
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def begin(self, method: str, *arguments: Any) -> None:
        """Call a method, and do not wait for it: for who is going to kill the process."""
        with contextlib.suppress(BrokenPipeError):
            self._connection.send((method, arguments))

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection) -> None:
    logging.disable(logging.CRITICAL)
    store = _Store()
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        outcome: Any
        try:
            outcome = getattr(store, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - who called gets it
            outcome = error
        connection.send(outcome)


class _Store:
    """What is done with a store; keys and chunks go in, versions come out."""

    def __init__(self) -> None:
        self._store: Connector | None = None
        self._answers: dict[int, tuple[bool, str, list[bool]]] = {}

    @property
    def _open(self) -> Connector:
        assert self._store is not None
        return self._store

    def open(self, paths: list[str], capacity: list[str], options: dict[str, Any]) -> Any:
        self._store = Connector(paths, capacity, **options)
        return {**self._store.recovery, **self.counts()}

    def close(self, drain_s: float) -> dict[str, Any]:
        closed = self._open.close(HANG_DEADLINE_S / 2, drain_s)
        self._store = None
        self._answers.clear()
        return closed

    def counts(self) -> dict[str, Any]:
        stats = self._open.stats()
        assert stats["checksum_mismatch"] == 0, "bytes are not those that were stored"
        return {name: stats[name] for name in ("keys", "evicted", "expired", "set_failed")}

    def problems(self) -> list[str]:
        problems: list[str] = self._open.check()["problems"]
        return problems

    def set(self, chunks: Sequence[tuple[str, Chunk]]) -> tuple[bool, str, list[bool]]:
        return self._answer(self._submit_set(chunks))

    def set_and_leave(self, chunks: Sequence[tuple[str, Chunk]]) -> None:
        """Do not wait for the answer."""
        self._submit_set(chunks)

    def delete_and_leave(self, keys: list[str]) -> None:
        """Do not wait for the answer."""
        self._open.submit_batch_delete(keys)

    def _submit_set(self, chunks: Sequence[tuple[str, Chunk]]) -> int:
        keys = [key for key, _ in chunks]
        return self._open.submit_batch_set(keys, [content(key, chunk) for key, chunk in chunks])

    def get(self, wanted: Sequence[tuple[str, list[Chunk]]]) -> list[Chunk | None]:
        """Return which of the chunks that each key may have it has, None for none.

        Raises:
            AssertionError: It has other bytes.
        """
        lengths = [
            (position, length_bytes)
            for position, (_, chunks) in enumerate(wanted)
            for length_bytes in sorted({length_bytes for _, length_bytes in chunks})
        ]
        memory = [bytearray(length_bytes) for _, length_bytes in lengths]
        keys = [wanted[position][0] for position, _ in lengths]
        ok, error, results = self._answer(self._open.submit_batch_get(keys, memory))
        assert (ok, error) == (True, "")
        found: list[Chunk | None] = [None] * len(wanted)
        for (position, length_bytes), loaded, hit in zip(lengths, memory, results, strict=True):
            if not hit:
                continue
            key, chunks = wanted[position]
            fitting = [chunk for chunk in chunks if chunk[1] == length_bytes]
            matching = [chunk for chunk in fitting if content(key, chunk) == loaded]
            assert matching, f"{key!r} has bytes that it cannot have; possible: {chunks}"
            assert found[position] is None, f"{key!r} has two chunks"
            found[position] = matching[0]
        return found

    def exists(self, keys: list[str]) -> list[bool]:
        return self._answer(self._open.submit_batch_exists(keys))[2]

    def prefix(self, keys: list[str]) -> list[bool]:
        return self._answer(self._open.submit_batch_prefix(keys))[2]

    def delete(self, keys: list[str]) -> list[bool]:
        return self._answer(self._open.submit_batch_delete(keys))[2]

    def pin(self, keys: list[str]) -> list[bool]:
        return self._open.pin(keys)

    def unpin(self, keys: list[str]) -> list[bool]:
        return self._open.unpin(keys)

    def touch(self, keys: list[str]) -> list[bool]:
        return self._open.touch(keys)

    def purge(self, namespace: str) -> dict[str, Any]:
        return self._open.purge(namespace)

    def expire(self) -> int:
        return self._open.expire()

    def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run a word of the command `kvring`; return its status and what it printed."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(arguments))
        return status, out.getvalue(), err.getvalue()

    def document(self, *arguments: str) -> Any:
        """Run a command that prints JSON and must succeed; return what it printed."""
        status, out, err = self.command(*arguments)
        assert status == 0, (arguments, out, err)
        return json.loads(out) if out else None

    def _answer(self, future_id: int) -> tuple[bool, str, list[bool]]:
        poll = select.poll()
        poll.register(self._open.event_fd(), select.POLLIN)
        while future_id not in self._answers:
            assert poll.poll(HANG_DEADLINE_S * 1000), f"no completion: {self._open.stats()}"
            for done, ok, error, results in self._open.drain_completions():
                assert done not in self._answers, "a batch was answered twice"
                self._answers[done] = (ok, error, results)
        return self._answers.pop(future_id)
