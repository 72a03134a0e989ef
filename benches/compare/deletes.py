"""One call that deletes as many keys as an eviction step of LMCache may name, while loads run."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import Any

from benches.compare.arena import Arena
from benches.compare.clients import Client
from benches.compare.peers import FS_NATIVE, KVRING, Peer, fs_native_peer, kvring_peer
from benches.compare.samples import Sample, percentile
from benches.compare.scale import KIB, MIB, Scale
from benches.compare.session import SectionResult, Session, open_peers, progress, sync_file_system
from benches.compare.workload import (
    STALL_TIMEOUT_S,
    TransferError,
    chunk_names,
    require_ok,
    timed_delete,
    timed_set,
)
from tests.support.devices import EXT4_LOOP

DELETE_UNDER_LOAD = "delete in one call"
COMPLETION_TIME = "completion_s"
LOAD_P99 = "load_p99_ms"

_CHUNK_SIZE_BYTES = 4 * KIB
_LOADED_SIZE_BYTES = MIB
_LOADED_CHUNKS = 64
_LOAD_BATCH_KEYS = 16
_LOADS_IN_FLIGHT = 2
_LEAD_S = 0.5
_STORE_BATCH_KEYS = 64
_SHARED_CHUNKS = 512


def run(session: Session) -> SectionResult:
    """Measure on ext4 over a loop device."""
    result = SectionResult()
    scale, arena = session.scale, session.arena(same_filled=False)
    peers: dict[str, tuple[Peer, int]] = {
        KVRING: (kvring_peer(KVRING), scale.delete_rounds),
        # It takes minutes to store that many files and to delete them.
        FS_NATIVE: (fs_native_peer(FS_NATIVE, 4), 1),
    }
    with session.device(EXT4_LOOP) as device:
        result.device = {"name": device.name, **device.facts}
        openable = [peer for peer, _ in peers.values()]
        with open_peers(openable, device, session, arena, _CHUNK_SIZE_BYTES, result) as clients:
            for name, client in clients.items():
                for round_number in range(peers[name][1]):
                    progress(f"{scale.deletes} deletes, round {round_number + 1}: {name}")
                    values = _measure(client, arena, scale, round_number)
                    sync_file_system(device.directory)
                    result.samples.add(
                        Sample(
                            *(DELETE_UNDER_LOAD, f"{scale.deletes:,} keys", _CHUNK_SIZE_BYTES),
                            *(name, round_number, values),
                        )
                    )
    result.notes.append(
        f"{scale.deletes:,} keys of 4 KiB in one call, while two batches of 16 loads of 1 MiB are "
        f"always in flight. {FS_NATIVE}: one round."
    )
    return result


def _measure(client: Client, arena: Arena, scale: Scale, round_number: int) -> dict[str, float]:
    loaded_keys = client.keys(chunk_names("loaded", _LOADED_CHUNKS))
    timed_set(
        client,
        loaded_keys,
        client.chunks(arena.to_store(_LOADED_SIZE_BYTES, _LOADED_CHUNKS)),
        _LOAD_BATCH_KEYS,
    )
    doomed = client.keys(chunk_names(f"doomed {round_number}", scale.deletes))
    chunks = client.chunks(arena.to_store(_CHUNK_SIZE_BYTES, _SHARED_CHUNKS))
    repeats = -(-len(doomed) // _SHARED_CHUNKS)
    timed_set(client, doomed, (chunks * repeats)[: len(doomed)], _STORE_BATCH_KEYS)
    destinations = client.chunks(arena.to_load(_LOADED_SIZE_BYTES, _LOADED_CHUNKS))
    run = _Run(client, loaded_keys, destinations)
    completion_s = run.delete_while_loading(doomed)
    timed_delete(client, loaded_keys, _LOADED_CHUNKS)
    return {COMPLETION_TIME: completion_s, LOAD_P99: percentile(run.latencies_s, 99) * 1000}


@dataclass
class _Run:
    """Loads that go on and on, and a delete in their midst."""

    client: Client
    keys: list[Any]
    chunks: list[Any]

    def delete_while_loading(self, doomed: list[Any]) -> float:
        """Return the seconds from submitting the delete to draining its completion."""
        poller = select.poll()
        poller.register(self.client.event_fd(), select.POLLIN)
        self.latencies_s: list[float] = []
        started: dict[int, float] = {}
        lead_ends_s = time.perf_counter() + _LEAD_S
        delete: int | None = None
        delete_started_s = 0.0
        batch = 0
        while True:
            while len(started) < _LOADS_IN_FLIGHT:
                at = batch * _LOAD_BATCH_KEYS % _LOADED_CHUNKS
                batch += 1
                end = at + _LOAD_BATCH_KEYS
                submitted_s = time.perf_counter()
                future = self.client.submit_get(self.keys[at:end], self.chunks[at:end])
                started[future] = submitted_s
            if delete is None and time.perf_counter() >= lead_ends_s:
                delete_started_s = time.perf_counter()
                delete = self.client.submit_delete(doomed)
            if not poller.poll(STALL_TIMEOUT_S * 1000):
                raise TransferError("neither the loads nor the delete come to an end")
            for completion in self.client.drain():
                # A delete may answer False for a key that it did not hold.
                require_ok(completion, all_true=completion[0] != delete)
                if completion[0] == delete:
                    completion_s = time.perf_counter() - delete_started_s
                    self._finish(poller, started)
                    return completion_s
                self.latencies_s.append(time.perf_counter() - started.pop(completion[0]))

    def _finish(self, poller: select.poll, started: dict[int, float]) -> None:
        while started:
            if not poller.poll(STALL_TIMEOUT_S * 1000):
                raise TransferError("the loads do not come to an end")
            for completion in self.client.drain():
                started.pop(completion[0], None)
