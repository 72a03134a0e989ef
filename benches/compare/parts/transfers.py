"""Put, get and delete by chunk size, in alternating rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Client
from benches.compare.harness.fio import GET, PUT, FioError, run_fio
from benches.compare.harness.peers import (
    BARE,
    BARE_OFF,
    BARE_POSIX,
    FILES,
    FILES_POSIX,
    FIO,
    KVRING,
    KVRING_OFF,
    ONE_PATH,
    ONE_PATH_TWO_THREADS,
    POSIX,
    RAW_BLOCK_PEER,
    TWO_PATHS,
    Peer,
    UnavailableError,
    bare_kvring_peer,
    kvring_peer,
    lmcache_peers,
    registered_peer,
    two_paths_peer,
)
from benches.compare.harness.samples import Sample, in_turn, size_text
from benches.compare.harness.scale import Plan
from benches.compare.harness.session import (
    PartResult,
    Session,
    open_peer,
    open_peers,
    progress,
    sync_device,
)
from benches.compare.harness.workload import (
    TransferError,
    chunk_names,
    timed_delete,
    timed_get,
    timed_set,
)
from tests.support.devices import EXT4_LOOP, XFS_ZRAM, Device, DeviceError, ext4_on

DELETE = "delete"

_DELETE_BATCH_KEYS = 256
_WARM_UP = -1
_FEWER_SIZES_BYTES = (4096, 64 << 10, 1 << 20, 32 << 20)
_TURNS_NOTE = (
    "A bare device is formatted anew for each round, and written once, untimed, before it."
)
# Measures one round of one peer: metric values by operation.
Round = Callable[[int], dict[str, dict[str, float]]]


def run_on_disk(session: Session) -> PartResult:
    """Measure on ext4 over a loop device."""
    return _run_with_peers(session, EXT4_LOOP)


def run_on_zram(session: Session) -> PartResult:
    """Measure on XFS over zram: software alone."""
    return _run_with_peers(session, XFS_ZRAM)


def _run_with_peers(session: Session, device_name: str) -> PartResult:
    peers = [
        kvring_peer(KVRING),
        kvring_peer(KVRING_OFF, checksum="off"),
        *session.more_peers,
        registered_peer(),
        *lmcache_peers(every_peer=session.scale.every_peer),
    ]
    return run_transfers(session, device_name, peers, list(session.scale.plans))


def run_bare(session: Session) -> PartResult:
    """Measure on a bare loop device, which one after the other has to itself."""
    peers = [
        bare_kvring_peer(BARE),
        bare_kvring_peer(BARE_OFF, checksum="off"),
        replace(RAW_BLOCK_PEER, takes_turns=True),
    ]
    result = run_transfers(session, EXT4_LOOP, peers, list(session.scale.plans))
    result.notes.append(_TURNS_NOTE)
    return result


def run_layouts(session: Session) -> PartResult:
    """Measure kvring's layouts and engines beside each other, on the disk."""
    few_files = {4096: 1 / 4}
    peers = [
        kvring_peer(KVRING),
        replace(kvring_peer(FILES, layout="files"), shares=few_files),
        bare_kvring_peer(BARE),
        kvring_peer(POSIX, engine="posix"),
        replace(kvring_peer(FILES_POSIX, layout="files", engine="posix"), shares=few_files),
        bare_kvring_peer(BARE_POSIX, engine="posix"),
    ]
    result = run_transfers(session, EXT4_LOOP, peers, list(session.scale.plans))
    result.notes.append(_TURNS_NOTE)
    return result


def run_paths(session: Session) -> PartResult:
    """Measure one path beside two, each ext4 on a loop device of its own over the same disk."""
    plans = [plan for plan in session.scale.plans if plan.chunk_size_bytes in _FEWER_SIZES_BYTES]
    with ext4_on(session.second_block(), session.results_directory) as second:
        peers = [
            kvring_peer(ONE_PATH),
            kvring_peer(ONE_PATH_TWO_THREADS, io_threads=2),
            two_paths_peer(TWO_PATHS, second / "second-path"),
        ]
        result = run_transfers(session, EXT4_LOOP, peers, plans)
    result.notes.append("Both loop devices lie on one disk: this shows what spreading keys costs.")
    return result


@dataclass(frozen=True)
class _Bench:
    session: Session
    device: Device
    arena: Arena
    result: PartResult


def run_transfers(
    session: Session, device_name: str, peers: list[Peer], plans: list[Plan]
) -> PartResult:
    """Measure these peers, and fio, with these plans."""
    result = PartResult()
    with session.device(device_name) as device:
        is_bare = all(peer.takes_turns for peer in peers)
        if is_bare and device.raw_device is None:
            raise DeviceError("it needs a bare device: leave --path away")
        result.device = device.bare_facts if is_bare else {"name": device.name, **device.facts}
        arena = session.arena(same_filled=device.name == XFS_ZRAM)
        bench = _Bench(session, device, arena, result)
        for plan in plans:
            size = plan.chunk_size_bytes
            _run_plan(bench, [one for one in peers if size in (one.sizes_bytes or (size,))], plan)
    return result


def _run_plan(bench: _Bench, peers: list[Peer], plan: Plan) -> None:
    side_by_side = [peer for peer in peers if not peer.takes_turns]
    size = plan.chunk_size_bytes
    with open_peers(
        side_by_side, bench.device, bench.session, bench.arena, size, bench.result
    ) as clients:
        measures = {
            peer.name: _peer_round(bench, peer, clients.get(peer.name), plan)
            for peer in peers
            if peer.takes_turns or peer.name in clients
        }
        measures[FIO] = _fio_round(bench, plan, is_bare=not side_by_side)
        for number, name in in_turn(list(measures), bench.session.scale.rounds):
            if name not in measures:
                continue
            progress(f"{bench.device.name}, {size_text(size)}, round {number + 1}: {name}")
            try:
                measured = measures[name](number)
            except (FioError, UnavailableError) as reason:
                bench.result.skip(name, reason)
                del measures[name]
                continue
            if number != _WARM_UP:
                bench.result.samples += [
                    Sample(f"{operation} {size_text(size)}", name, number, values)
                    for operation, values in measured.items()
                ]


def _peer_round(bench: _Bench, peer: Peer, client: Client | None, plan: Plan) -> Round:
    """Measure with the client that stays open, or with one that is opened for the round."""
    reduced = plan.reduced(peer.shares.get(plan.chunk_size_bytes, 1.0))
    if client is not None:
        return _client_round(bench, client, reduced)

    def measure(round_number: int) -> dict[str, dict[str, float]]:
        device, session, arena = bench.device, bench.session, bench.arena
        size = plan.chunk_size_bytes
        with open_peer(peer, "turn", device, session, arena, size, bench.result) as opened:
            if round_number != _WARM_UP:
                _write_once(bench, opened, reduced)
            return _client_round(bench, opened, reduced)(round_number)

    return measure


def _write_once(bench: _Bench, client: Client, plan: Plan) -> None:
    """Store and remove as much as a round does, so that index and threads are there for it."""
    keys = client.keys(chunk_names(f"{plan.chunk_size_bytes}:once", plan.chunk_count))
    stored = client.chunks(bench.arena.to_store(plan.chunk_size_bytes, plan.chunk_count))
    timed_set(client, keys, stored, plan.batch_keys)
    timed_delete(client, keys, _DELETE_BATCH_KEYS)
    sync_device(bench.device)


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
        sync_device(bench.device)
        get = timed_get(client, keys, loaded, plan.batch_keys)
        if verified and (different := arena.differing_chunks(size, count)):
            raise TransferError(f"{len(different)} chunks came back wrong: {different[:8]}")
        # To the last answer: what is freed behind it is not timed.
        delete = timed_delete(client, keys, _DELETE_BATCH_KEYS)
        sync_device(bench.device)
        return {
            PUT: put.transfer_values(plan.size_bytes),
            GET: get.transfer_values(plan.size_bytes),
            DELETE: delete.key_values(count),
        }

    return measure


def _fio_round(bench: _Bench, plan: Plan, *, is_bare: bool) -> Round:
    bare = bench.device.raw_device if is_bare else None
    file = bare or Path(bench.device.directory) / f"fio-{plan.chunk_size_bytes}"
    same_filled = bench.arena.same_filled

    def measure(round_number: int) -> dict[str, dict[str, float]]:
        values = {}
        try:
            for operation in (PUT, GET):
                values[operation] = run_fio(operation, plan, file, same_filled=same_filled)
                sync_device(bench.device)
        finally:
            if bare is None and round_number == bench.session.scale.rounds - 1:
                file.unlink(missing_ok=True)
        return values

    return measure
