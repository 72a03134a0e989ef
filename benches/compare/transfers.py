"""Put, get and delete by chunk size, in alternating rounds.

What disturbs one peer has the same chance to disturb the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benches.compare.arena import Arena
from benches.compare.clients import Client
from benches.compare.devices import EXT4_LOOP, XFS_ZRAM, Device, DeviceError, ext4_on
from benches.compare.fio import FioError, fio_command, run_fio
from benches.compare.peers import (
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
    io_threads_peers,
    kvring_peer,
    lmcache_peers,
    two_paths_peer,
)
from benches.compare.samples import Sample, size_text
from benches.compare.scale import Plan
from benches.compare.session import (
    SectionResult,
    Session,
    open_peer,
    open_peers,
    progress,
    sync_device,
)
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

# Other values of the constants that are there for speed.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "queue_depth": (32, 512),
    "max_io_bytes": (256 << 10, 1 << 20, 4 << 20),
    "set_in_flight_bytes": (8 << 20,),
    "registered_files": (False,),
}
_FEWER_SIZES_BYTES = (4096, 64 << 10, 1 << 20, 32 << 20)

_DELETE_BATCH_KEYS = 256
_WARM_UP = -1
_TURNS_NOTE = (
    "One after the other has the bare device to itself: each is opened anew for its round, "
    "formats what the one before has left, and writes as much as counts once, untimed, before it."
)

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
    peers = [kvring_peer(KVRING)]
    peers += [kvring_peer(f"io_threads {count}", io_threads=count) for count in (2, 4)]
    peers += [
        kvring_peer(f"{name} {value}", {name: value})
        for name, values in SETTINGS.items()
        for value in values
    ]
    result = _run(session, XFS_ZRAM, peers, _fewer_plans(session))
    result.notes.append("Each column is kvring with its defaults but for one option or constant.")
    return result


def run_bare(session: Session) -> SectionResult:
    """Measure on a bare loop device, which one after the other has to itself."""
    peers = [
        bare_kvring_peer(BARE),
        bare_kvring_peer(BARE_OFF, checksum="off"),
        replace(RAW_BLOCK_PEER, takes_turns=True),
    ]
    result = _run(session, EXT4_LOOP, peers, list(session.scale.plans))
    result.notes.append(_TURNS_NOTE)
    return result


def run_layouts(session: Session) -> SectionResult:
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
    result = _run(session, EXT4_LOOP, peers, list(session.scale.plans))
    result.notes += [
        "The bare device is a loop device like the one below ext4, over a file on the same disk. "
        + _TURNS_NOTE,
        "Without a word about it the layout is extents, and the engine io_uring.",
    ]
    return result


def run_paths(session: Session) -> SectionResult:
    """Measure one path beside two, each ext4 on a loop device of its own over the same disk."""
    with ext4_on(session.second_block(), session.results_directory) as second:
        peers = [
            kvring_peer(ONE_PATH),
            kvring_peer(ONE_PATH_TWO_THREADS, io_threads=2),
            two_paths_peer(TWO_PATHS, second / "second-path"),
        ]
        result = _run(session, EXT4_LOOP, peers, _fewer_plans(session))
    result.notes.append(
        "Two paths have reactors of their own, so one path with two io_threads stands beside them. "
        "Both loop devices lie on the same disk: this shows what spreading the keys costs, and not "
        "what a second disk gives."
    )
    return result


def _fewer_plans(session: Session) -> list[Plan]:
    return [plan for plan in session.scale.plans if plan.chunk_size_bytes in _FEWER_SIZES_BYTES]


@dataclass(frozen=True)
class _Bench:
    session: Session
    device: Device
    arena: Arena
    result: SectionResult

    def opened(self, peer: Peer, plan: Plan) -> AbstractContextManager[Client]:
        """Open a peer for one round."""
        size_bytes = plan.chunk_size_bytes
        return open_peer(
            peer, "turn", self.device, self.session, self.arena, size_bytes, self.result
        )


def _run_with_peers(session: Session, device_name: str, ours: list[Peer]) -> SectionResult:
    peers = ours + lmcache_peers(every_peer=session.scale.every_peer)
    return _run(session, device_name, peers, list(session.scale.plans))


def _run(
    session: Session,
    device_name: str,
    peers: list[Peer],
    plans: list[Plan],
) -> SectionResult:
    result = SectionResult()
    with session.device(device_name) as device:
        is_bare = all(peer.takes_turns for peer in peers)
        if is_bare and device.raw_device is None:
            raise DeviceError("it needs a bare device: leave --path away")
        result.device = device.bare_facts if is_bare else {"name": device.name, **device.facts}
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
    side_by_side = [peer for peer in peers if not peer.takes_turns]
    with open_peers(
        side_by_side, bench.device, bench.session, bench.arena, plan.chunk_size_bytes, bench.result
    ) as clients:
        measures = {
            peer.name: _peer_round(bench, peer, clients.get(peer.name), plan)
            for peer in peers
            if peer.takes_turns or peer.name in clients
        }
        measures[FIO] = _fio_round(bench, plan, is_bare=not side_by_side)
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
            except (FioError, UnavailableError) as reason:
                bench.result.skip(name, reason)
                del measures[name]
                continue
            if round_number < 0:
                continue
            for operation, values in measured.items():
                bench.result.samples.add(
                    Sample(operation, "", plan.chunk_size_bytes, name, round_number, values)
                )


def _peer_round(bench: _Bench, peer: Peer, client: Client | None, plan: Plan) -> Round:
    """Measure with the client that stays open, or with one that is opened for the round."""
    reduced = plan.reduced(peer.shares.get(plan.chunk_size_bytes, 1.0))
    if client is not None:
        return _client_round(bench, client, reduced)

    def measure(round_number: int) -> dict[str, dict[str, float]]:
        with bench.opened(peer, plan) as opened:
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
    bench.result.commands.setdefault(
        "fio, as for the first size",
        " ".join(fio_command(PUT, plan, "FILE", same_filled=same_filled)),
    )

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
