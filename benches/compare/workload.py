"""One transfer through one connector: keep a few batches in flight, and time the whole."""

from __future__ import annotations

import gc
import hashlib
import resource
import select
import time
from collections.abc import Callable
from dataclasses import dataclass

from benches.compare.peers import NativeConnector

BATCHES_IN_FLIGHT = 4
_STALL_TIMEOUT_S = 120.0
_MODEL = "meta-llama/Llama-3.1-8B-Instruct"

Submit = Callable[[], int]


@dataclass(frozen=True)
class Plan:
    """How much is moved in a round, and in which portions."""

    chunk_size_bytes: int
    chunk_count: int
    batch_keys: int

    @property
    def size_bytes(self) -> int:
        """All bytes of a round."""
        return self.chunk_size_bytes * self.chunk_count


@dataclass(frozen=True)
class Measurement:
    """What one timed transfer took."""

    size_bytes: int
    elapsed_s: float
    cpu_s: float

    @property
    def rate_mb_per_s(self) -> float:
        """Megabytes (1e6) a second."""
        return self.size_bytes / 1e6 / self.elapsed_s

    @property
    def cpu_s_per_gb(self) -> float:
        """Seconds of processor time, user and system, for a gigabyte (1e9)."""
        return self.cpu_s / (self.size_bytes / 1e9)


class TransferError(RuntimeError):
    """A connector failed, stalled, or lost something it had stored."""


def chunk_keys(plan: Plan, round_number: int) -> list[str]:
    """Return the keys of a round, shaped as LMCache shapes them."""
    hashes = (
        hashlib.sha256(f"{plan.chunk_size_bytes}:{round_number}:{chunk}".encode()).hexdigest()
        for chunk in range(plan.chunk_count)
    )
    return [f"{_MODEL}@00010001@0@{chunk_hash}" for chunk_hash in hashes]


def timed_put(
    connector: NativeConnector, plan: Plan, keys: list[str], chunks: list[memoryview]
) -> Measurement:
    """Store all chunks, and say what it took."""
    return _timed_transfer(connector, connector.submit_batch_set, plan, keys, chunks)


def timed_get(
    connector: NativeConnector, plan: Plan, keys: list[str], chunks: list[memoryview]
) -> Measurement:
    """Load all chunks, and say what it took."""
    return _timed_transfer(connector, connector.submit_batch_get, plan, keys, chunks)


def delete(connector: NativeConnector, plan: Plan, keys: list[str]) -> None:
    """Remove the keys of a round. Not timed."""

    def submit_for(batch: list[str]) -> Submit:
        return lambda: connector.submit_batch_delete(batch)

    batches = [keys[start:end] for start, end in _batch_bounds(plan)]
    _drive(connector, [submit_for(batch) for batch in batches])


def _timed_transfer(
    connector: NativeConnector,
    operation: Callable[[list[str], list[memoryview]], int],
    plan: Plan,
    keys: list[str],
    chunks: list[memoryview],
) -> Measurement:
    def submit_for(batch_keys: list[str], batch_chunks: list[memoryview]) -> Submit:
        return lambda: operation(batch_keys, batch_chunks)

    submits = [submit_for(keys[start:end], chunks[start:end]) for start, end in _batch_bounds(plan)]
    gc.collect()
    cpu_before_s = _process_cpu_s()
    started_s = time.perf_counter()
    _drive(connector, submits)
    elapsed_s = time.perf_counter() - started_s
    return Measurement(plan.size_bytes, elapsed_s, _process_cpu_s() - cpu_before_s)


def _batch_bounds(plan: Plan) -> list[tuple[int, int]]:
    starts = range(0, plan.chunk_count, plan.batch_keys)
    return [(start, min(start + plan.batch_keys, plan.chunk_count)) for start in starts]


def _drive(connector: NativeConnector, submits: list[Submit]) -> None:
    """Run the submits with a fixed number of them in flight, and require that all succeed."""
    poller = select.poll()
    poller.register(connector.event_fd(), select.POLLIN)
    waiting = iter(submits)
    in_flight: set[int] = set()
    for submit in waiting:
        in_flight.add(submit())
        if len(in_flight) < BATCHES_IN_FLIGHT:
            continue
        _complete_some(connector, poller, in_flight)
    while in_flight:
        _complete_some(connector, poller, in_flight)


def _complete_some(connector: NativeConnector, poller: select.poll, in_flight: set[int]) -> None:
    if not poller.poll(_STALL_TIMEOUT_S * 1000):
        raise TransferError(f"no completion in {_STALL_TIMEOUT_S:.0f} s, {len(in_flight)} due")
    for future_id, ok, error, results in connector.drain_completions():
        if not ok:
            raise TransferError(f"batch {future_id} failed: {error}")
        if results is not None and not all(results):
            raise TransferError(f"batch {future_id}: {results.count(False)} keys failed or missed")
        in_flight.remove(future_id)


def _process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
