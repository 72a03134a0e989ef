"""What the programs that measure engines share: figures, and a line of JSON for each sample."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benches.compare.harness.samples import CPU, P50, P99, RATE, Sample, percentile, size_text

_LEAST_FREE_BYTES = 512 << 20


def emit(
    operation: str, chunk_size_bytes: int, peer: str, round_number: int, values: dict[str, float]
) -> None:
    """Print a sample, as the parent process reads it."""
    case = f"{operation} {size_text(chunk_size_bytes)}" if chunk_size_bytes else operation
    print(json.dumps(asdict(Sample(case, peer, round_number, values))), flush=True)


@contextmanager
def figures(moved_bytes: int) -> Iterator[dict[str, float]]:
    """Measure what a block takes; its rate and CPU time are there when it is over."""
    values: dict[str, float] = {}
    cpu_s, started_s = _cpu_s(), time.perf_counter()
    yield values
    elapsed_s = time.perf_counter() - started_s
    values[RATE] = moved_bytes / 1e6 / elapsed_s
    values[CPU] = (_cpu_s() - cpu_s) / (moved_bytes / 1e9)


def among_stores(
    latencies_ms: list[float], stored_bytes: int, elapsed_s: float
) -> dict[str, float]:
    """Return the figures of loads among stores."""
    return {
        P50: percentile(latencies_ms, 50),
        P99: percentile(latencies_ms, 99),
        RATE: stored_bytes / 1e6 / elapsed_s,
    }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def drop_page_cache(directory: Path) -> None:
    """Write all of a file system, and have nothing of it in memory: who reads reads the disk."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")
    except PermissionError:
        for path in directory.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def space_bytes(directory: Path) -> int:
    """Return what files below a directory take on disk."""
    files = (path.lstat() for path in directory.rglob("*") if path.is_file())
    return sum(file.st_blocks * 512 for file in files)


def ensure_room(directory: Path) -> None:
    """Refuse to go on where a peer that keeps all would fill the disk, and then fail by that."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < _LEAST_FREE_BYTES:
        text = f"{directory} has {free_bytes} bytes left; give a larger disk, or fewer --loads"
        raise RuntimeError(text)


def wait_until(reached: Callable[[], bool], pause_s: float = 0.0002) -> None:
    """Wait, as an engine between its steps."""
    deadline_s = time.monotonic() + 300
    while not reached():
        if time.monotonic() > deadline_s:
            raise TimeoutError("a transfer does not end")
        time.sleep(pause_s)
