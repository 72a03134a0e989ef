"""Bursts of loads, as prefix hits are: 64 MiB at once, then nothing for 150 ms.

A steady load lets adaptive mechanisms settle; a burst is over before. So each burst is one batch,
on XFS over zram, where software alone is timed. The same is measured beside eight processes that
keep the processors busy.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Client
from benches.compare.harness.peers import (
    FS_NATIVE,
    FS_NATIVE_32,
    KVRING,
    KVRING_OFF,
    fs_native_peer,
    kvring_peer,
)
from benches.compare.harness.samples import CPU, P50, P90, Sample, in_turn, percentile, size_text
from benches.compare.harness.scale import BURSTS, Plan
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
    timed_set,
)
from tests.support.devices import XFS_ZRAM

_GAP_S = 0.15
_BUSY_PROCESSES = 8
# It ends with its parent, however that ends.
_BUSY_PROGRAM = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


def run(session: Session) -> PartResult:
    """Measure on an otherwise idle machine."""
    return _run(session, busy_processes=0)


def run_busy(session: Session) -> PartResult:
    """Measure beside busy processes."""
    return _run(session, busy_processes=_BUSY_PROCESSES)


def _run(session: Session, *, busy_processes: int) -> PartResult:
    result, scale = PartResult(), session.scale
    peers = [
        kvring_peer(KVRING),
        kvring_peer(KVRING_OFF, checksum="off"),
        *session.more_peers,
        fs_native_peer(FS_NATIVE, 4),
        fs_native_peer(FS_NATIVE_32, 32),
    ]
    with session.device(XFS_ZRAM) as device:
        result.device = {"name": device.name, **device.facts}
        arena = session.arena(same_filled=True)
        largest = max(plan.chunk_size_bytes for plan in BURSTS)
        with open_peers(peers, device, session, arena, largest, result) as clients:
            keys = {
                (name, plan): _store(client, arena, plan)
                for plan in BURSTS
                for name, client in clients.items()
            }
            sync_file_system(device.directory)
            with _busy(busy_processes) if busy_processes else nullcontext():
                for number, (name, plan) in in_turn(list(keys), scale.burst_rounds, first=0):
                    progress(f"bursts, round {number + 1} of {scale.burst_rounds}: {name}")
                    values = _measure(clients[name], arena, plan, keys[name, plan], scale.bursts)
                    case = f"{plan.chunk_count} x {size_text(plan.chunk_size_bytes)}"
                    result.samples.append(Sample(case, name, number, values))
    result.notes.append(
        f"Each burst is one batch of 64 MiB, {_GAP_S * 1000:.0f} ms after the last one's end; "
        f"{scale.bursts} bursts a round and size. {busy_processes} busy processes beside it."
    )
    return result


def _store(client: Client, arena: Arena, plan: Plan) -> list[Any]:
    size, count = plan.chunk_size_bytes, plan.chunk_count
    keys = client.keys(chunk_names(f"burst {size}", count))
    timed_set(client, keys, client.chunks(arena.to_store(size, count)), plan.batch_keys)
    return keys


def _measure(
    client: Client, arena: Arena, plan: Plan, keys: list[Any], bursts: int
) -> dict[str, float]:
    """Load all keys at once, again and again, with pauses between."""
    size, count = plan.chunk_size_bytes, plan.chunk_count
    chunks = client.chunks(arena.to_load(size, count))
    arena.clear_loaded(plan.size_bytes)
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    latencies_s = []
    cpu_before_s = process_cpu_s()
    for _ in range(bursts):
        time.sleep(_GAP_S)
        started_s = time.perf_counter()
        future = client.submit_get(keys, chunks)
        _wait(client, poller, future)
        latencies_s.append(time.perf_counter() - started_s)
    cpu_s = process_cpu_s() - cpu_before_s
    if different := arena.differing_chunks(size, count):
        raise TransferError(f"{len(different)} chunks of a burst came back with wrong bytes")
    return {
        P50: percentile(latencies_s, 50) * 1000,
        P90: percentile(latencies_s, 90) * 1000,
        CPU: cpu_s / (bursts * plan.size_bytes / 1e9),
    }


def _wait(client: Client, poller: select.poll, future: int) -> None:
    while True:
        if not poller.poll(STALL_TIMEOUT_S * 1000):
            raise TransferError(f"a burst has no answer after {STALL_TIMEOUT_S:.0f} s")
        for completion in client.drain():
            require_ok(completion, all_true=True)
            if completion[0] == future:
                return


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep processors busy with so many processes."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _BUSY_PROGRAM])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
