"""Driving one client: keep a few batches in flight, and time the whole."""

from __future__ import annotations

import gc
import hashlib
import resource
import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benches.compare.harness.clients import Client
from benches.compare.harness.samples import CPU, KEY_RATE, RATE
from benches.compare.harness.scale import BATCHES_IN_FLIGHT

STALL_TIMEOUT_S = 120.0
_MODEL = "meta-llama/Llama-3.1-8B-Instruct"

Submit = Callable[[], int]


class TransferError(RuntimeError):
    """A connector failed, stalled, or lost something it had stored."""


@dataclass(frozen=True)
class Timing:
    """What driving a number of batches took."""

    elapsed_s: float
    cpu_s: float
    results: list[list[bool] | None]

    def transfer_values(self, size_bytes: int) -> dict[str, float]:
        """Return megabytes (1e6) a second, and processor seconds for a gigabyte (1e9)."""
        return {
            RATE: size_bytes / 1e6 / self.elapsed_s,
            CPU: self.cpu_s / (size_bytes / 1e9),
        }

    def key_values(self, key_count: int) -> dict[str, float]:
        """Return keys a second."""
        return {KEY_RATE: key_count / self.elapsed_s}


def chunk_names(label: str, count: int) -> list[str]:
    """Return keys shaped as LMCache shapes them, the same for the same label."""
    hashes = (hashlib.sha256(f"{label}:{chunk}".encode()).hexdigest() for chunk in range(count))
    return [f"{_MODEL}@00010001@0@{chunk_hash}" for chunk_hash in hashes]


def timed_set(client: Client, keys: list[Any], chunks: list[Any], batch_keys: int) -> Timing:
    """Store all chunks, and say what it took."""
    return timed(client, _transfers(client.submit_set, keys, chunks, batch_keys))


def timed_get(client: Client, keys: list[Any], chunks: list[Any], batch_keys: int) -> Timing:
    """Load all chunks, and say what it took. A miss is an error."""
    return timed(client, _transfers(client.submit_get, keys, chunks, batch_keys))


def timed_delete(client: Client, keys: list[Any], batch_keys: int) -> Timing:
    """Remove all keys, and say what it took until the last answer."""
    batches = [keys[at : at + batch_keys] for at in range(0, len(keys), batch_keys)]
    return timed(client, [_call(client.submit_delete, batch) for batch in batches])


def timed(client: Client, submits: Iterable[Submit], *, all_true: bool = True) -> Timing:
    """Run the submits with a fixed number of them in flight.

    Args:
        client: Whose completions to wait for.
        submits: What to do; may go on producing while it is consumed.
        all_true: Whether a key that is answered False is an error.

    Returns:
        What it took, and the answers in the order in which they came.

    Raises:
        TransferError: A batch failed or stalled.
    """
    results: list[list[bool] | None] = []
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    gc.collect()
    gc.disable()
    try:
        cpu_before_s = process_cpu_s()
        started_s = time.perf_counter()
        in_flight: set[int] = set()
        for submit in submits:
            in_flight.add(submit())
            while len(in_flight) >= BATCHES_IN_FLIGHT:
                _complete_some(client, poller, in_flight, results, all_true)
        while in_flight:
            _complete_some(client, poller, in_flight, results, all_true)
        elapsed_s = time.perf_counter() - started_s
        return Timing(elapsed_s, process_cpu_s() - cpu_before_s, results)
    finally:
        gc.enable()


def repeated(submits: list[Submit], least_time_s: float) -> Iterator[Submit]:
    """Go round the submits, each at least once, until the time is up."""
    ends_s = time.perf_counter() + least_time_s
    while True:
        yield from submits
        if time.perf_counter() >= ends_s:
            return


def require_ok(completion: tuple[int, bool, str, list[bool] | None], *, all_true: bool) -> None:
    """Raise TransferError for a batch that failed or missed."""
    future, ok, error, results = completion
    if not ok:
        raise TransferError(f"batch {future} failed: {error}")
    if all_true and results is not None and not all(results):
        raise TransferError(f"batch {future}: {results.count(False)} keys failed or missed")


def process_cpu_s() -> float:
    """Return the processor time of this process so far, user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _transfers(
    operation: Callable[[list[Any], list[Any]], int],
    keys: list[Any],
    chunks: list[Any],
    batch_keys: int,
) -> list[Submit]:
    bounds = [(at, at + batch_keys) for at in range(0, len(keys), batch_keys)]
    return [_call(operation, keys[at:end], chunks[at:end]) for at, end in bounds]


def _call(operation: Callable[..., int], *arguments: Any) -> Submit:
    return lambda: operation(*arguments)


def _complete_some(
    client: Client,
    poller: select.poll,
    in_flight: set[int],
    results: list[list[bool] | None],
    all_true: bool,
) -> None:
    if not poller.poll(STALL_TIMEOUT_S * 1000):
        raise TransferError(f"no completion in {STALL_TIMEOUT_S:.0f} s, {len(in_flight)} due")
    for completion in client.drain():
        require_ok(completion, all_true=all_true)
        results.append(completion[3])
        in_flight.remove(completion[0])
