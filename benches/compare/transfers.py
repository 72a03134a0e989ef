"""Put, get and delete by chunk size, in alternating rounds.

What disturbs one peer has the same chance to disturb the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benches.compare import checksum
from benches.compare.arena import Arena
from benches.compare.clients import Client
from benches.compare.fio import FioError, fio_command, run_fio
from benches.compare.memory import MEMORY_READ, NOTE, ONE_CORE, MemoryReader
from benches.compare.peers import FIO, FS_NATIVE, Peer, UnavailableError
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
from tests.support.devices import XFS_ZRAM, Device, DeviceError

PUT = "put"
GET = "get"
DELETE = "delete"

_DELETE_BATCH_KEYS = 256
_WARM_UP = -1
# Measures one round of one peer: metric values by operation.
Round = Callable[[int], dict[str, dict[str, float]]]


@dataclass(frozen=True)
class _Bench:
    session: Session
    device: Device
    arena: Arena
    result: SectionResult
    reader: MemoryReader

    def opened(self, peer: Peer, plan: Plan) -> AbstractContextManager[Client]:
        """Open a peer for one round."""
        size_bytes = plan.chunk_size_bytes
        return open_peer(
            peer, "turn", self.device, self.session, self.arena, size_bytes, self.result
        )


def run_transfers(
    session: Session,
    device_name: str,
    peers: list[Peer],
    plans: list[Plan],
) -> SectionResult:
    """Measure these peers, and fio, with these plans."""
    result = SectionResult()
    with session.device(device_name) as device:
        is_bare = all(peer.takes_turns for peer in peers)
        if is_bare and device.raw_device is None:
            raise DeviceError("it needs a bare device: leave --path away")
        result.device = device.bare_facts if is_bare else {"name": device.name, **device.facts}
        arena = session.arena(same_filled=device.name == XFS_ZRAM)
        bench = _Bench(session, device, arena, result, MemoryReader())
        for plan in plans:
            size = plan.chunk_size_bytes
            _run_plan(bench, [one for one in peers if size in (one.sizes_bytes or (size,))], plan)
    names = {peer.name for peer in peers}
    if any(names.issuperset(pair) for pair in checksum.PAIRS):
        result.notes += [checksum.SHARE, NOTE]
    if device_name == XFS_ZRAM and names.issuperset((*checksum.PAIRS[0], FS_NATIVE)):
        result.notes.append(checksum.FORMULA)
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
        measures[ONE_CORE] = _memory_round(bench.reader)
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


def _memory_round(reader: MemoryReader) -> Round:
    return lambda _: {MEMORY_READ: reader.measure()}


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
