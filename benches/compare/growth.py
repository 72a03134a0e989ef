"""Loads while the store grows by data file after data file, and the same in the files that it has.

A round opens a new store. Stores without pause fill it while single loads run; then all that was
stored is deleted, and the same is done again: now no file is made.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from benches.compare.mixed import MixedSetting
from benches.compare.peers import KVRING, kvring_peer
from benches.compare.samples import RATE, Sample, percentile
from benches.compare.session import SectionResult, Session, open_peer, progress, sync_file_system
from benches.compare.workload import STALL_TIMEOUT_S, TransferError
from tests.support.devices import XFS_ZRAM, Device

GROWTH = "loads among stores"
GROWING = "while the store grows"
SETTLED = "in the files that it has"
POOLED = "pooled"
P50 = "load_p50_ms"
P999 = "load_p999_ms"
FILES = "data_files_made"


def run(session: Session) -> SectionResult:
    """Measure on XFS over zram, where a file is the slowest there is in proportion."""
    result, scale = SectionResult(), session.scale
    pooled_ms: dict[str, list[float]] = {}
    with session.device(XFS_ZRAM) as device:
        result.device = {"name": device.name, **device.facts}
        for round_number in range(scale.growth_rounds):
            progress(f"growth, round {round_number + 1} of {scale.growth_rounds}")
            for sample, latencies_ms in _round(session, device, round_number, result):
                result.samples.add(sample)
                pooled_ms.setdefault(sample.peer, []).extend(latencies_ms)
    for peer, latencies_ms in pooled_ms.items():
        size = scale.growth.chunk_size_bytes
        result.samples.add(Sample(GROWTH, POOLED, size, peer, 0, _percentiles(latencies_ms)))
    interval_ms = scale.growth.get_interval_s * 1000
    result.notes.append(
        f"{scale.growth.stored_chunks} chunks of 1 MiB are stored without pause, and a load of one "
        f"chunk is due every {interval_ms:.0f} ms. Pooled: the loads of all rounds together, so "
        "that the p99.9 is no single load."
    )
    return result


def _round(
    session: Session, device: Device, round_number: int, result: SectionResult
) -> list[tuple[Sample, list[float]]]:
    scale = session.scale
    arena = session.arena(same_filled=True)
    size = scale.growth.chunk_size_bytes
    peer = kvring_peer(KVRING, capacity=scale.growth_capacity_bytes)
    label = f"growth-{round_number}"
    measured = []
    _wait_for_space(device.directory, scale.growth_capacity_bytes)
    with open_peer(peer, label, device, session, arena, size, result) as client:
        setting = MixedSetting(client, arena, scale.growth)
        for number, name in enumerate((GROWING, SETTLED)):
            files_before = _data_files(device.directory)
            run = setting.measure(2 * round_number + number, with_sets=True)
            values = {
                **_percentiles(run.latencies_ms),
                RATE: run.set_mb_per_s,
                FILES: float(_data_files(device.directory) - files_before),
            }
            sample = Sample(GROWTH, "", size, name, round_number, values)
            measured.append((sample, run.latencies_ms))
            sync_file_system(device.directory)
    return measured


def _wait_for_space(directory: Path, needed_bytes: int) -> None:
    """Wait until XFS has freed, in the background, what the round before removed."""
    ends_s = time.monotonic() + STALL_TIMEOUT_S
    while (free_bytes := shutil.disk_usage(directory).free) < needed_bytes:
        if time.monotonic() > ends_s:
            raise TransferError(f"{free_bytes:,} bytes are free, {needed_bytes:,} are needed")
        time.sleep(0.1)


def _percentiles(latencies_ms: list[float]) -> dict[str, float]:
    return {P50: percentile(latencies_ms, 50), P999: percentile(latencies_ms, 99.9)}


def _data_files(directory: Path) -> int:
    return sum(1 for _ in directory.rglob("data-*.kvring"))
