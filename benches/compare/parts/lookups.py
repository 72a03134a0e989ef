"""Exists, in batches of 256, with none, half and all of the keys held."""

from __future__ import annotations

from typing import Any

from benches.compare.harness.clients import Client
from benches.compare.harness.peers import FS, KVRING, RAW_BLOCK, kvring_peer, lmcache_peers
from benches.compare.harness.samples import KEY_RATE, Sample, in_turn
from benches.compare.harness.scale import KIB
from benches.compare.harness.session import PartResult, Session, open_peers, progress
from benches.compare.harness.workload import (
    Submit,
    TransferError,
    chunk_names,
    repeated,
    timed,
    timed_delete,
    timed_set,
)
from tests.support.devices import EXT4_LOOP

_HIT_PERCENTS = (0, 50, 100)

_BATCH_KEYS = 256
_STORE_BATCH_KEYS = 32
_CHUNK_SIZE_BYTES = 4 * KIB
# Storing 32,768 files takes these minutes, and their lookups don't depend on the number.
_FEWER_KEYS = {FS: 1 / 16, RAW_BLOCK: 1 / 4}


def run(session: Session) -> PartResult:
    """Measure lookups on ext4 over a loop device."""
    result = PartResult()
    peers = [kvring_peer(KVRING), *lmcache_peers(every_peer=session.scale.every_peer)]
    arena = session.arena(same_filled=False)
    with session.device(EXT4_LOOP) as device:
        result.device = {"name": device.name, **device.facts}
        with open_peers(peers, device, session, arena, _CHUNK_SIZE_BYTES, result) as clients:
            held = {}
            for name, client in clients.items():
                count = round(session.scale.exists_keys * _FEWER_KEYS.get(name, 1))
                progress(f"exists: {name} stores {count} keys")
                held[name] = client.keys(chunk_names("held", count))
                chunks = client.chunks(arena.to_store(_CHUNK_SIZE_BYTES, _BATCH_KEYS))
                # The same few chunks under all keys: only the keys are asked for.
                repeats = -(-count // _BATCH_KEYS)
                timed_set(client, held[name], (chunks * repeats)[:count], _STORE_BATCH_KEYS)
            for number, name in in_turn(list(clients), session.scale.rounds):
                progress(f"exists: round {number + 1} of {session.scale.rounds}: {name}")
                for hit_percent in _HIT_PERCENTS:
                    rate = _key_rate(session, clients[name], held[name], hit_percent)
                    if number >= 0:
                        case = f"{hit_percent} % held"
                        result.samples.append(Sample(case, name, number, {KEY_RATE: rate}))
            for name, client in clients.items():
                timed_delete(client, held[name], _BATCH_KEYS)
    return result


def _key_rate(session: Session, client: Client, held: list[Any], hit_percent: int) -> float:
    absent = client.keys(chunk_names("absent", len(held)))
    keys = [
        present if index * hit_percent // 100 != (index + 1) * hit_percent // 100 else missing
        for index, (present, missing) in enumerate(zip(held, absent, strict=True))
    ]
    submits = [
        _lookup(client, keys[at : at + _BATCH_KEYS]) for at in range(0, len(keys), _BATCH_KEYS)
    ]
    timing = timed(client, repeated(submits, session.scale.exists_time_s), all_true=False)
    client.unlock(held)
    looked_up = sum(len(results) for results in timing.results if results is not None)
    found = sum(sum(results) for results in timing.results if results is not None)
    if found != looked_up * hit_percent // 100:
        raise TransferError(f"{found} of {looked_up} keys found, with {hit_percent} % held")
    return looked_up / timing.elapsed_s


def _lookup(client: Client, batch: list[Any]) -> Submit:
    return lambda: client.submit_exists(batch)
