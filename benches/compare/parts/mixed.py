"""Stores without pause, and every 20 ms a batch of loads: how long do the loads take?"""

from __future__ import annotations

import gc
import random
import select
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Client
from benches.compare.harness.peers import FS_NATIVE, KVRING, fs_native_peer, kvring_peer
from benches.compare.harness.samples import (
    CPU,
    GET_RATE,
    P50,
    P99,
    RATE,
    Sample,
    in_turn,
    percentile,
    size_text,
)
from benches.compare.harness.scale import MixedPlan
from benches.compare.harness.session import (
    PartResult,
    Session,
    open_peers,
    progress,
    sync_file_system,
)
from benches.compare.harness.workload import (
    STALL_TIMEOUT_S,
    TransferError,
    chunk_names,
    process_cpu_s,
    require_ok,
    timed_delete,
    timed_set,
)
from tests.support.devices import EXT4_LOOP, XFS_ZRAM

KVRING_ALONE = "kvring, loads alone"

_DELETE_BATCHES = 16


def run_on_disk(session: Session) -> PartResult:
    """Measure on ext4 over a loop device."""
    return _run(session, EXT4_LOOP)


def run_on_zram(session: Session) -> PartResult:
    """Measure on XFS over zram."""
    return _run(session, XFS_ZRAM)


def _run(session: Session, device_name: str) -> PartResult:
    result, plan = PartResult(), session.scale.mixed
    peers = [kvring_peer(KVRING), fs_native_peer(FS_NATIVE, 4), *session.more_peers]
    with session.device(device_name) as device:
        result.device = {"name": device.name, **device.facts}
        arena = session.arena(same_filled=device.name == XFS_ZRAM)
        with open_peers(peers, device, session, arena, plan.chunk_size_bytes, result) as clients:
            runs = {name: MixedSetting(client, arena, plan) for name, client in clients.items()}
            variants = [(name, name, True) for name in clients] + [(KVRING_ALONE, KVRING, False)]
            for number, (name, client_name, with_sets) in in_turn(variants, session.scale.rounds):
                progress(f"mixed, {device.name}, round {number + 1}: {name}")
                cpu_before_s = process_cpu_s()
                run = runs[client_name].measure(number, with_sets=with_sets)
                cpu_s = process_cpu_s() - cpu_before_s
                sync_file_system(device.directory)
                if number < 0:
                    continue
                values = {
                    P50: percentile(run.latencies_ms, 50),
                    P99: percentile(run.latencies_ms, 99),
                    GET_RATE: run.get_mb_per_s,
                    CPU: cpu_s / (run.moved_bytes / 1e9),
                    **({RATE: run.set_mb_per_s} if with_sets else {}),
                }
                case = f"{plan.get_batch_keys} x {size_text(plan.chunk_size_bytes)} among stores"
                result.samples.append(Sample(case, name, number, values))
            for setting in runs.values():
                setting.remove_loadable()
    result.notes.append(
        f"{plan.sets_in_flight} SETs of 1 MiB are always in flight; beyond {plan.kept_chunks} "
        f"stored chunks the oldest are deleted. A batch of {plan.get_batch_keys} GETs is due every "
        f"{plan.get_interval_s * 1000:.0f} ms, or right after a slower one before it; n = "
        f"{plan.get_batches} a round. MB/s: of the stores."
    )
    return result


@dataclass(frozen=True)
class MixedRun:
    """What was stored and loaded side by side, and how long each batch of loads took."""

    set_mb_per_s: float
    get_mb_per_s: float
    moved_bytes: int
    latencies_ms: list[float]


@dataclass
class _State:
    """One run in progress."""

    sets: dict[int, tuple[list[Any], int]] = field(default_factory=dict)
    deletes: set[int] = field(default_factory=set)
    kept: deque[list[Any]] = field(default_factory=deque)
    set_chunks: int = 0
    next_name: int = 0
    get: int | None = None
    get_started_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    stored: bool = True


class MixedSetting:
    """A client with chunks to load, and the lists that a run needs, all made beforehand."""

    def __init__(self, client: Client, arena: Arena, plan: MixedPlan) -> None:
        self._client, self._arena, self._plan = client, arena, plan
        size = plan.chunk_size_bytes
        to_store = client.chunks(arena.to_store(size, plan.loadable_chunks))
        self._loadable = client.keys(chunk_names("loadable", plan.loadable_chunks))
        timed_set(client, self._loadable, to_store, plan.get_batch_keys)
        step = plan.get_batch_keys
        self._get_batches = [
            self._loadable[at : at + step] for at in range(0, plan.loadable_chunks, step)
        ]
        random.Random(2).shuffle(self._get_batches)
        self._destinations = client.chunks(arena.to_load(size, step))
        batch = plan.set_batch_keys
        self._set_chunks = [
            to_store[at : at + batch] for at in range(0, plan.sets_in_flight, batch)
        ]
        self._kept_batches = plan.kept_chunks // batch

    def measure(self, round_number: int, *, with_sets: bool) -> MixedRun:
        """Run once."""
        state = _State()
        prefix = f"mixed@{round_number & 0xFF:08x}@0@"
        poller = select.poll()
        poller.register(self._client.event_fd(), select.POLLIN)
        gc.collect()
        gc.disable()
        try:
            if with_sets:
                for slot in range(len(self._set_chunks)):
                    self._submit_set(state, prefix, slot)
                lead_ends_s = time.perf_counter() + self._plan.lead_s
                while time.perf_counter() < lead_ends_s:
                    self._step(state, prefix, poller, lead_ends_s)
            state.set_chunks = 0
            started_s = due_s = time.perf_counter()
            while len(state.latencies_s) < self._plan.get_batches:
                now_s = time.perf_counter()
                if state.get is None and now_s >= due_s:
                    self._submit_get(state)
                    due_s = state.get_started_s + self._plan.get_interval_s
                self._step(state, prefix, poller, due_s if state.get is None else None)
            elapsed_s = time.perf_counter() - started_s
            stored_chunks = state.set_chunks
            self._finish(state, prefix, poller)
        finally:
            gc.enable()
        loaded_chunks = len(state.latencies_s) * self._plan.get_batch_keys
        mb_per_s = self._plan.chunk_size_bytes / 1e6 / elapsed_s
        latencies_ms = [latency_s * 1000 for latency_s in state.latencies_s]
        moved_bytes = (stored_chunks + loaded_chunks) * self._plan.chunk_size_bytes
        return MixedRun(
            stored_chunks * mb_per_s, loaded_chunks * mb_per_s, moved_bytes, latencies_ms
        )

    def remove_loadable(self) -> None:
        """Delete what was stored to be loaded."""
        timed_delete(self._client, self._loadable, 64)

    def _submit_set(self, state: _State, prefix: str, slot: int) -> None:
        first, count = state.next_name, self._plan.set_batch_keys
        state.next_name += count
        names = [f"{prefix}{number:064x}" for number in range(first, first + count)]
        keys = self._client.keys(names)
        state.sets[self._client.submit_set(keys, self._set_chunks[slot])] = (keys, slot)

    def _submit_get(self, state: _State) -> None:
        keys = self._get_batches[len(state.latencies_s) % len(self._get_batches)]
        state.get_started_s = time.perf_counter()
        state.get = self._client.submit_get(keys, self._destinations)

    def _step(self, state: _State, prefix: str, poller: select.poll, until_s: float | None) -> None:
        """Wait for completions, at most until a moment, and follow up each of them."""
        timeout_ms = STALL_TIMEOUT_S * 1000
        if until_s is not None:
            timeout_ms = max((until_s - time.perf_counter()) * 1000, 0)
        if not poller.poll(timeout_ms):
            if until_s is None:
                raise TransferError(f"no completion in {STALL_TIMEOUT_S:.0f} s")
            return
        for completion in self._client.drain():
            future = completion[0]
            require_ok(completion, all_true=future not in state.deletes)
            if future == state.get:
                state.latencies_s.append(time.perf_counter() - state.get_started_s)
                state.get = None
            elif future in state.sets:
                keys, slot = state.sets.pop(future)
                state.kept.append(keys)
                state.set_chunks += len(keys)
                if state.stored:
                    self._submit_set(state, prefix, slot)
                    self._delete_oldest(state)
            else:
                state.deletes.discard(future)

    def _delete_oldest(self, state: _State) -> None:
        if len(state.kept) < self._kept_batches + _DELETE_BATCHES:
            return
        oldest = [key for _ in range(_DELETE_BATCHES) for key in state.kept.popleft()]
        state.deletes.add(self._client.submit_delete(oldest))

    def _finish(self, state: _State, prefix: str, poller: select.poll) -> None:
        state.stored = False
        while state.sets or state.deletes:
            self._step(state, prefix, poller, None)
        self._require_last_batch(state)
        left = [key for keys in state.kept for key in keys]
        if left:
            timed_delete(self._client, left, 64)

    def _require_last_batch(self, state: _State) -> None:
        """Compare what the last batch has loaded with what was stored."""
        size, count = self._plan.chunk_size_bytes, self._plan.get_batch_keys
        keys = self._get_batches[(len(state.latencies_s) - 1) % len(self._get_batches)]
        first = self._loadable.index(keys[0])
        stored = self._arena.to_store(size, first + count)[first:]
        if stored != self._arena.to_load(size, count):
            raise TransferError("the last batch of loads came back with wrong bytes")
