"""Put, get and delete by chunk size, in alternating rounds.

What disturbs one peer has the same chance to disturb the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.compare.arena import Arena
from benches.compare.clients import Client
from benches.compare.devices import EXT4_LOOP, XFS_ZRAM, Device
from benches.compare.fio import FioError, fio_command, run_fio
from benches.compare.peers import (
    FIO,
    KVRING,
    KVRING_OFF,
    Peer,
    io_threads_peers,
    kvring_peer,
    lmcache_peers,
)
from benches.compare.samples import Sample, size_text
from benches.compare.scale import Plan
from benches.compare.session import SectionResult, Session, open_peers, progress, sync_file_system
from benches.compare.workload import (
    TransferError,
    chunk_names,
    timed_delete,
    timed_get,
    timed_set,
)

PUT = "put"
GET = "get"
DELETE = "delete"

# Other values of the options that are there for speed.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "io_threads": (2, 4),
    "queue_depth": (32, 512),
    "max_io_bytes": ("256KiB", "1MiB", "4MiB"),
    "set_in_flight_bytes": ("8MiB",),
    "registered_files": ("off",),
}
_SETTINGS_SIZES_BYTES = (4096, 64 << 10, 1 << 20, 32 << 20)

_DELETE_BATCH_KEYS = 256
_WARM_UP = -1

# Measures one round of one peer: metric values by operation.
Round = Callable[[int], dict[str, dict[str, float]]]


def run_on_disk(session: Session) -> SectionResult:
    """Measure on ext4 over a loop device."""
    ours = [kvring_peer(KVRING), kvring_peer(KVRING_OFF, checksum="off")]
    return _run_with_peers(session, EXT4_LOOP, ours)


def run_on_zram(session: Session) -> SectionResult:
    """Measure on XFS over zram: software alone."""
    return _run_with_peers(session, XFS_ZRAM, [kvring_peer(KVRING), *io_threads_peers()])


def run_settings(session: Session) -> SectionResult:
    """Measure kvring's own settings beside its defaults, on XFS over zram, where software shows."""
    peers = [kvring_peer(KVRING)] + [
        kvring_peer(f"{name} {value}", **{name: value})
        for name, values in SETTINGS.items()
        for value in values
    ]
    plans = [plan for plan in session.scale.plans if plan.chunk_size_bytes in _SETTINGS_SIZES_BYTES]
    result = _run(session, XFS_ZRAM, peers, plans)
    result.notes.append("Each column is kvring with its defaults but for one option.")
    return result


@dataclass(frozen=True)
class _Bench:
    session: Session
    device: Device
    arena: Arena
    result: SectionResult


def _run_with_peers(session: Session, device_name: str, ours: list[Peer]) -> SectionResult:
    peers = ours + lmcache_peers(every_peer=session.scale.every_peer)
    return _run(session, device_name, peers, list(session.scale.plans))


def _run(session: Session, device_name: str, peers: list[Peer], plans: list[Plan]) -> SectionResult:
    result = SectionResult()
    with session.device(device_name) as device:
        result.device = {"name": device.name, **device.facts}
        arena = session.arena(same_filled=device.name == XFS_ZRAM)
        bench = _Bench(session, device, arena, result)
        for plan in plans:
            _run_plan(bench, peers, plan)
    result.notes.append(
        "Delete is timed to the last answer of batches of 256 keys, four in flight: what the "
        "kernel or kvring frees behind it is not. 32 MiB: 32 keys, so it is the time of one call."
    )
    return result


def _run_plan(bench: _Bench, peers: list[Peer], plan: Plan) -> None:
    with open_peers(
        peers, bench.device, bench.session, bench.arena, plan.chunk_size_bytes, bench.result
    ) as clients:
        shares = {peer.name: peer.shares.get(plan.chunk_size_bytes, 1.0) for peer in peers}
        measures = {
            name: _client_round(bench, client, plan.reduced(shares[name]))
            for name, client in clients.items()
        }
        measures[FIO] = _fio_round(bench, plan)
        _alternate(bench, measures, plan)


def _alternate(bench: _Bench, measures: dict[str, Round], plan: Plan) -> None:
    round_count = bench.session.scale.rounds
    for round_number in range(_WARM_UP, round_count):
        # Who goes first pays for what the round before left behind: take turns.
        order = list(measures) if round_number % 2 == 0 else list(measures)[::-1]
        which = "warm-up" if round_number < 0 else f"round {round_number + 1} of {round_count}"
        progress(f"{bench.device.name}, {size_text(plan.chunk_size_bytes)}, {which}")
        for name in order:
            try:
                measured = measures[name](round_number)
            except FioError as reason:
                bench.result.skip(name, reason)
                del measures[name]
                continue
            if round_number < 0:
                continue
            for operation, values in measured.items():
                bench.result.samples.add(
                    Sample(operation, "", plan.chunk_size_bytes, name, round_number, values)
                )


def _client_round(bench: _Bench, client: Client, plan: Plan) -> Round:
    """Store, load and remove one round's chunks; verify in the warm-up and the last round."""
    arena, size, count = bench.arena, plan.chunk_size_bytes, plan.chunk_count
    stored = client.chunks(arena.to_store(size, count))
    loaded = client.chunks(arena.to_load(size, count))

    def measure(round_number: int) -> dict[str, dict[str, float]]:
        keys = client.keys(chunk_names(f"{size}:{round_number}", count))
        verified = round_number in (_WARM_UP, bench.session.scale.rounds - 1)
        if verified:
            arena.clear_loaded(plan.size_bytes)
        put = timed_set(client, keys, stored, plan.batch_keys)
        sync_file_system(bench.device.directory)
        get = timed_get(client, keys, loaded, plan.batch_keys)
        if verified and (different := arena.differing_chunks(size, count)):
            raise TransferError(f"{len(different)} chunks came back wrong: {different[:8]}")
        delete = timed_delete(client, keys, _DELETE_BATCH_KEYS)
        sync_file_system(bench.device.directory)
        return {
            PUT: put.transfer_values(plan.size_bytes),
            GET: get.transfer_values(plan.size_bytes),
            DELETE: delete.key_values(count),
        }

    return measure


def _fio_round(bench: _Bench, plan: Plan) -> Round:
    file = Path(bench.device.directory) / f"fio-{plan.chunk_size_bytes}"
    same_filled = bench.arena.same_filled
    bench.result.commands.setdefault(
        "fio, as for the first size",
        " ".join(fio_command(PUT, plan, "FILE", same_filled=same_filled)),
    )

    def measure(round_number: int) -> dict[str, dict[str, float]]:
        values = {}
        try:
            for operation in (PUT, GET):
                values[operation] = run_fio(operation, plan, file, same_filled=same_filled)
                sync_file_system(bench.device.directory)
        finally:
            if round_number == bench.session.scale.rounds - 1:
                file.unlink(missing_ok=True)
        return values

    return measure
