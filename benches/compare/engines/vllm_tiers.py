"""kvring as vLLM's tier, beside vLLM's own `fs`.

Both get the same jobs from the same memory: vLLM's shared region, as its own spec makes it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import ReqContext
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from benches.compare.engines.measuring import (
    among_stores,
    emit,
    ensure_room,
    figures,
    space_bytes,
    wait_until,
)
from benches.compare.harness.samples import in_turn
from tests.support.vllm_config import file_tier, key_of, kvring_tier, make_config

_MIB = 1 << 20
# 16 tokens of Llama 3.1 8B in 16 bits.
_ROW_BYTES = 2 * _MIB
_JOB_ROWS = 16
# Jobs of a tier that are not finished, as one step after the other submits them.
_JOBS_IN_FLIGHT = 4
_REQUEST = ReqContext(req_id="bench")

KVRING, FS = "kvring", "vLLM's fs"


@dataclass
class Tier:
    """A tier, and the jobs that it has not finished."""

    name: str
    tier: Any
    directory: Path
    _next_job: int = 0
    _submitted_s: dict[int, float] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)

    def submit(self, first_key: int, first_row: int, rows: int, *, is_load: bool) -> None:
        """Submit a job of some keys and rows, one after the other."""
        number = self._next_job
        self._next_job += 1
        job = TransferJob(
            job_id=number,
            keys=[key_of(first_key + one) for one in range(rows)],
            chunk_ids=np.arange(first_row, first_row + rows, dtype=np.int32),
            is_promotion=is_load,
            req_context=_REQUEST,
        )
        # Only loads are timed.
        self._submitted_s[number] = time.perf_counter() if is_load else 0.0
        (self.tier.submit_load if is_load else self.tier.submit_store)(job)

    def poll(self) -> int:
        """Take finished jobs, and return how many are left."""
        for result in self.tier.get_finished_jobs():
            submitted_s = self._submitted_s.pop(result.job_id)
            if not result.success:
                raise RuntimeError(f"{self.name}: job {result.job_id} failed")
            if submitted_s:
                self.latencies_ms.append((time.perf_counter() - submitted_s) * 1000)
        return len(self._submitted_s)

    def move(self, first_key: int, count: int, *, is_load: bool) -> None:
        """Move chunks between the first rows and the tier."""
        for first in range(0, count, _JOB_ROWS):
            wait_until(lambda: self.poll() < _JOBS_IN_FLIGHT)
            self.submit(first_key + first, first, min(_JOB_ROWS, count - first), is_load=is_load)
        self.finish()

    def finish(self) -> None:
        """Wait until all jobs are finished."""
        wait_until(lambda: self.poll() == 0)

    def clear(self) -> None:
        """Remove all that is stored."""
        if self.name == FS:
            for path in self.directory.rglob("*.bin"):
                path.unlink()
        else:
            store = self.tier._store.connector  # noqa: SLF001 - the tier has no such call
            for namespace in store.usage():
                store.purge(namespace)


def main() -> None:
    """Measure, and print a sample a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--loads", type=int, default=100)
    arguments = parser.parse_args()
    capacity_bytes = 3 * arguments.rows * _ROW_BYTES
    directories = {name: arguments.directory / name.split()[-1] for name in (KVRING, FS)}
    below = [kvring_tier(directories[KVRING], capacity_bytes), file_tier(directories[FS])]
    config = make_config(below, rows=arguments.rows, row_bytes=_ROW_BYTES, is_portable=True)
    spec = TieringOffloadingSpec(config)
    manager = spec.get_manager()
    try:
        view = manager.primary_tier.get_kv_memoryview()
        np.asarray(view)[:] = np.random.default_rng(1).integers(-128, 128, view.shape, np.int8)
        tiers = [
            Tier(name, tier, directories[name])
            for name, tier in zip((KVRING, FS), manager.secondary_tiers, strict=True)
        ]
        _throughput(tiers, arguments.rounds, arguments.rows)
        _promotions(tiers, arguments.rounds, arguments.rows, arguments.loads)
        _space(tiers, arguments.rows)
    finally:
        manager.shutdown()


def _throughput(tiers: list[Tier], rounds: int, rows: int) -> None:
    for number, tier in in_turn(tiers, rounds):
        first_key = (number + 1) * rows
        for operation in ("store", "load"):
            with figures(rows * _ROW_BYTES) as values:
                tier.move(first_key, rows, is_load=operation == "load")
            if number >= 0:
                emit(operation, _ROW_BYTES, tier.name, number, values)
        tier.clear()


def _promotions(tiers: list[Tier], rounds: int, rows: int, loads: int) -> None:
    """Store without pause; every 20 ms a job of 16 loads: how long does it take?"""
    half = rows // 2
    for number, tier in in_turn(tiers, rounds):
        tier.move(1 << 40, half, is_load=False)
        for _ in range(3):
            # What is loaded again and again is not what kvring evicts.
            tier.move(1 << 40, half, is_load=True)
        tier.latencies_ms.clear()
        stored = 0
        next_load_s = time.perf_counter() + 0.2
        started_s = time.perf_counter()
        done = 0
        while done < loads:
            while tier.poll() < _JOBS_IN_FLIGHT:
                ensure_room(tier.directory)
                first_key = (1 << 41) + ((number + 1) << 32) + stored
                tier.submit(first_key, stored % half, _JOB_ROWS, is_load=False)
                stored += _JOB_ROWS
            if time.perf_counter() >= next_load_s:
                row = done * _JOB_ROWS % half
                tier.submit((1 << 40) + row, half + row, _JOB_ROWS, is_load=True)
                done += 1
                next_load_s = time.perf_counter() + 0.02
            time.sleep(0.0002)
        elapsed_s = time.perf_counter() - started_s
        tier.finish()
        tier.clear()
        values = among_stores(tier.latencies_ms, stored * _ROW_BYTES, elapsed_s)
        if number >= 0:
            emit("loads among stores", _ROW_BYTES, tier.name, number, values)


def _space(tiers: list[Tier], rows: int) -> None:
    """Store three times what kvring's capacity is, and look what the disk has to hold."""
    for tier in tiers:
        for third in range(1, 10):
            tier.move((1 << 50) + third * rows, rows, is_load=False)
            if third % 3 == 0:
                values = {"space_gb": space_bytes(tier.directory) / 1e9}
                emit(f"after {third // 3} x the capacity", 0, tier.name, 0, values)


if __name__ == "__main__":
    main()
