"""Alternating rounds: what disturbs one peer has the same chance to disturb the other."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benches.compare import workload
from benches.compare.arena import Arena
from benches.compare.peers import OPENERS, NativeConnector, peer_facts
from benches.compare.workload import Measurement, Plan, TransferError

PUT = "put"
GET = "get"

_WARM_UP_ROUNDS = 1


@dataclass(frozen=True)
class Sample:
    """One measurement and where it belongs."""

    chunk_size_bytes: int
    operation: str
    peer: str
    round_number: int
    measurement: Measurement


@dataclass(frozen=True)
class Outcome:
    """Every measurement that counts, and what the peers said of themselves."""

    samples: list[Sample]
    facts: dict[str, dict[str, object]]


def run_rounds(
    directory: Path,
    peers: list[str],
    plans: list[Plan],
    round_count: int,
    arena: Arena,
    progress: Callable[[str], None],
) -> Outcome:
    """Measure all peers with all plans.

    Args:
        directory: Where each peer gets a directory of its own.
        peers: Names from `peers.OPENERS`.
        plans: What to move, one after the other.
        round_count: How many rounds count, after one that warms up.
        arena: Memory for the largest plan.
        progress: Told what happens now.

    Returns:
        What came out.
    """
    samples: list[Sample] = []
    with ExitStack() as stack:
        connectors: dict[str, NativeConnector] = {}
        for peer in peers:
            peer_directory = directory / peer
            peer_directory.mkdir()
            connectors[peer] = OPENERS[peer](peer_directory)
            stack.callback(connectors[peer].close)
        for plan in plans:
            for round_number in range(-_WARM_UP_ROUNDS, round_count):
                # Who goes first pays for what the round before left behind: take turns.
                order = peers if round_number % 2 == 0 else peers[::-1]
                for peer in order:
                    progress(_progress_line(plan, round_number, round_count, peer))
                    measured = _run_round(connectors[peer], plan, round_number, arena, directory)
                    if round_number >= 0:
                        samples += [
                            Sample(plan.chunk_size_bytes, operation, peer, round_number, one)
                            for operation, one in measured.items()
                        ]
        facts = {peer: peer_facts(connector) for peer, connector in connectors.items()}
    return Outcome(samples, facts)


def _run_round(
    connector: NativeConnector, plan: Plan, round_number: int, arena: Arena, directory: Path
) -> dict[str, Measurement]:
    """Store, load, verify and remove one round's chunks. The last two are not timed."""
    keys = workload.chunk_keys(plan, round_number)
    arena.clear_loaded(plan.size_bytes)
    stored = arena.to_store(plan.chunk_size_bytes, plan.chunk_count)
    loaded = arena.to_load(plan.chunk_size_bytes, plan.chunk_count)

    put = workload.timed_put(connector, plan, keys, stored)
    _sync_file_system(directory)
    get = workload.timed_get(connector, plan, keys, loaded)
    if different := arena.differing_chunks(plan.chunk_size_bytes, plan.chunk_count):
        raise TransferError(f"{len(different)} chunks came back with wrong bytes: {different[:8]}")
    workload.delete(connector, plan, keys)
    _sync_file_system(directory)
    return {PUT: put, GET: get}


def _sync_file_system(directory: Path) -> None:
    """Write out what is still dirty, so that nobody is timed with it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), f"syncfs on {directory}")
    finally:
        os.close(descriptor)


def _progress_line(plan: Plan, round_number: int, round_count: int, peer: str) -> str:
    which = "warm-up" if round_number < 0 else f"round {round_number + 1} of {round_count}"
    return f"{plan.chunk_size_bytes // 1024} KiB, {which}: {peer}"
