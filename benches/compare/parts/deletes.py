"""One call that deletes as many keys as an eviction step of LMCache may name, while loads run.

The delete is submitted from a thread of its own, as LMCache's controller of L2 evictions does, so
that the thread of the loads goes on.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Client
from benches.compare.harness.peers import FS_NATIVE, KVRING, fs_native_peer, kvring_peer
from benches.compare.harness.samples import P50, P99, Sample, percentile
from benches.compare.harness.scale import KIB, MIB
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
    require_ok,
    timed_delete,
    timed_set,
)
from tests.support.devices import EXT4_LOOP

_CHUNK_SIZE_BYTES = 4 * KIB
_LOADED_SIZE_BYTES = MIB
_LOADED_CHUNKS = 64
_LOAD_BATCH_KEYS = 16
_LOADS_IN_FLIGHT = 2
_LEAD_S = 0.5
_STORE_BATCH_KEYS = 64
_SHARED_CHUNKS = 512


def run(session: Session) -> PartResult:
    """Measure on ext4 over a loop device."""
    result, scale = PartResult(), session.scale
    arena = session.arena(same_filled=False)
    peers = [kvring_peer(KVRING), fs_native_peer(FS_NATIVE, 4)]
    # It takes minutes to store that many files and to delete them.
    rounds = {FS_NATIVE: 1}
    with session.device(EXT4_LOOP) as device:
        result.device = {"name": device.name, **device.facts}
        with open_peers(peers, device, session, arena, _CHUNK_SIZE_BYTES, result) as clients:
            for name, client in clients.items():
                for number in range(rounds.get(name, scale.rounds)):
                    progress(f"{scale.deletes} deletes, round {number + 1}: {name}")
                    values = measure(client, arena, scale.deletes, number)
                    sync_file_system(device.directory)
                    case = f"{scale.deletes:,} keys of 4 KiB"
                    result.samples.append(Sample(case, name, number, values))
    result.notes.append(
        "Time: from the submit of the delete to its completion. p50 and p99: those of the loads "
        "meanwhile, of which two batches of 16 x 1 MiB are always in flight."
    )
    return result


def measure(client: Client, arena: Arena, deletes: int, number: int) -> dict[str, float]:
    """Store what is deleted and what is loaded, and delete while loads run."""
    keys = client.keys(chunk_names("loaded", _LOADED_CHUNKS))
    stored = client.chunks(arena.to_store(_LOADED_SIZE_BYTES, _LOADED_CHUNKS))
    timed_set(client, keys, stored, _LOAD_BATCH_KEYS)
    doomed = client.keys(chunk_names(f"doomed {number}", deletes))
    chunks = client.chunks(arena.to_store(_CHUNK_SIZE_BYTES, _SHARED_CHUNKS))
    repeats = -(-len(doomed) // _SHARED_CHUNKS)
    timed_set(client, doomed, (chunks * repeats)[: len(doomed)], _STORE_BATCH_KEYS)
    destinations = client.chunks(arena.to_load(_LOADED_SIZE_BYTES, _LOADED_CHUNKS))
    run = _Loads(client, keys, destinations)
    duration_s = run.delete_meanwhile(doomed)
    timed_delete(client, keys, _LOADED_CHUNKS)
    return {
        "duration_s": duration_s,
        P50: percentile(run.latencies_s, 50) * 1000,
        P99: percentile(run.latencies_s, 99) * 1000,
    }


class _Loads:
    """Loads that go on and on, and a delete in their midst."""

    def __init__(self, client: Client, keys: list[Any], chunks: list[Any]) -> None:
        self._client, self._keys, self._chunks = client, keys, chunks
        self.latencies_s: list[float] = []
        self._started_s: dict[int, float] = {}
        self._batch = 0
        self._delete: tuple[int, float] | None = None
        self._early: dict[int, float] = {}
        self._poller = select.poll()
        self._poller.register(client.event_fd(), select.POLLIN)

    def delete_meanwhile(self, doomed: list[Any]) -> float:
        """Return the seconds from submitting the delete to draining its completion."""
        submitting = threading.Thread(target=self._submit_delete, args=(doomed,))
        lead_ends_s = time.perf_counter() + _LEAD_S
        while time.perf_counter() < lead_ends_s:
            self._step()
        self.latencies_s.clear()
        submitting.start()
        try:
            while True:
                self._step()
                # Its completion may be drained before its thread knows the number.
                if self._delete is not None and self._delete[0] in self._early:
                    return self._early[self._delete[0]] - self._delete[1]
        finally:
            submitting.join()
            while self._started_s:
                self._take()

    def _submit_delete(self, doomed: list[Any]) -> None:
        started_s = time.perf_counter()
        self._delete = (self._client.submit_delete(doomed), started_s)

    def _step(self) -> None:
        while len(self._started_s) < _LOADS_IN_FLIGHT:
            at = self._batch * _LOAD_BATCH_KEYS % _LOADED_CHUNKS
            self._batch += 1
            end = at + _LOAD_BATCH_KEYS
            started_s = time.perf_counter()
            future = self._client.submit_get(self._keys[at:end], self._chunks[at:end])
            self._started_s[future] = started_s
        self._take()

    def _take(self) -> None:
        if not self._poller.poll(STALL_TIMEOUT_S * 1000):
            raise TransferError("neither the loads nor the delete come to an end")
        for completion in self._client.drain():
            now_s = time.perf_counter()
            started_s = self._started_s.pop(completion[0], None)
            # A delete may answer False for a key that it did not hold.
            require_ok(completion, all_true=started_s is not None)
            if started_s is None:
                self._early[completion[0]] = now_s
            else:
                self.latencies_s.append(now_s - started_s)
