"""A long mixed load: nothing wrong, and memory, descriptors, threads, space and latency stay flat.

`python -m tools soak --minutes 1440`. One process lives through all of it and opens and closes
stores of both layouts, on one path and on several, with evictions, expiry, and a file system that
is full (resident.py). Beside it stores are driven, killed and restarted by the state machine
of `tools stateful`, in processes that come and go.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from tools import stateful
from tools.tool import OUTPUT, Options, Report, call

_MIB: Final = 1 << 20
_SMALL_MIB: Final = 48
# All paths of the resident's places in directories, and what the files of a path take beside it.
_MOST_DISK_BYTES: Final = 8 * 33 * _MIB
_WARM_UP: Final = 1 / 3
# Name, unit, its length, slope in units an hour that is none yet, and the rise that is none yet.
_FLAT: Final = (
    ("anonymous_bytes", "MiB", _MIB, 4.0, 4.0),
    ("malloc_bytes", "MiB", _MIB, 0.5, 0.5),
    ("mappings", "", 1, 2.0, 4.0),
    ("descriptors", "", 1, 0.5, 2.0),
    ("threads", "", 1, 0.5, 2.0),
)
# It may double: other programs run here, too.
_LATENCIES: Final = ("get_p99_ms", "set_p99_ms")

Sample = dict[str, Any]


def run(options: Options) -> Report:
    """Run for `options.minutes`, and judge what was sampled."""
    report = Report()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir=OUTPUT) as directory,
        _small_file_system() as small,
        ThreadPoolExecutor() as threads,
    ):
        words = [directory, small, str(options.seconds), str(options.seed)]
        resident = threads.submit(
            call,
            [sys.executable, "-m", "tools.soak.resident", *words],
            log=OUTPUT / "soak-resident.log",
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            timeout_s=options.seconds + 600,
        )
        beside = stateful.run(options)
        done = resident.result()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    samples = [line for line in lines if "time_s" in line]
    report.findings += beside.findings
    report.findings += [
        f"seed {options.seed}: wrong bytes: {one}" for one in lines if "wrong" in one
    ]
    if done.returncode != 0 or not samples:
        last = done.stdout.strip().splitlines()[-1:]
        report.findings.append(f"seed {options.seed}: the resident ended: {last}")
        return report
    totals = samples[-1]["totals"]
    if totals.get("not_clean"):
        report.findings.append(f"seed {options.seed}: {totals['not_clean']} closes were not clean")
    report.findings += [f"seed {options.seed}: {one}" for one in _judge(samples)]
    report.ran = (
        f"{totals['batches']:,} batches, {totals['hits']:,} loads compared, "
        f"{totals['closes']:,} closes, {len(samples)} samples; beside it {beside.ran}"
    )
    return report


def _judge(samples: list[Sample]) -> list[str]:
    """Print a row for each figure; return a sentence for each that is not flat."""
    findings: list[str] = []
    warm = samples[int(len(samples) * _WARM_UP) :]
    if len(warm) < 8:
        print(f"{len(samples)} samples are too few for slopes")
        return findings
    hours = [sample["time_s"] / 3600 for sample in warm]
    span_h = hours[-1] - hours[0]
    for name, unit, unit_size, least_slope, least_rise in _FLAT:
        values = [sample[name] / unit_size for sample in warm]
        slope, error = _slope(hours, values)
        ends = f"{values[0]:.1f} to {values[-1]:.1f} {unit}"
        told = f"{name}: {ends}, {slope:+.2f} +- {error:.2f} an hour"
        print(told)
        surely = slope - 3 * error
        if surely > least_slope and surely * span_h > least_rise:
            findings.append(told)
    for name in _LATENCIES:
        values = [sample[name] for sample in warm]
        slope, error = _slope(hours, values)
        told = (
            f"{name}: median {statistics.median(values):.1f}, {slope:+.1f} +- {error:.1f} an hour"
        )
        print(told)
        if (slope - 3 * error) * span_h > statistics.median(values):
            findings.append(told)
    most = max(sample["disk_bytes"] for sample in samples)
    print(f"disk: {most / _MIB:.0f} MiB at most, of {_MOST_DISK_BYTES / _MIB:.0f}")
    if most > _MOST_DISK_BYTES:
        findings.append(f"{most} bytes on disk are more than all capacities")
    return findings


def _slope(times: list[float], values: list[float]) -> tuple[float, float]:
    """Return the slope of a line through the values, and its standard error."""
    line = statistics.linear_regression(times, values)
    pairs = zip(times, values, strict=True)
    residuals = [value - line.intercept - line.slope * time for time, value in pairs]
    mean = statistics.fmean(times)
    spread = sum((time - mean) ** 2 for time in times)
    variance = sum(one * one for one in residuals) / (len(times) - 2)
    return line.slope, math.sqrt(variance / spread)


@contextmanager
def _small_file_system() -> Iterator[str]:
    """Lend a file system that fills up, as root; an empty name where none can be had."""
    with tempfile.TemporaryDirectory(prefix="kvring-soak-") as place:
        options = f"size={_SMALL_MIB}m"
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            yield ""
            return
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)
