"""vLLM and SGLang without LMCache: kvring below them, beside what they have themselves.

They have an environment of their own (`make engines`). What is measured there are the programs of
benches/compare/engines; each prints a sample a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benches.compare.harness.samples import Sample
from benches.compare.harness.session import PartResult, Session, progress
from tests.support.devices import EXT4_LOOP, DeviceError

_PYTHON = Path(".venv-engines/bin/python")
_CONTROLLER = Path("/sys/fs/cgroup/blkio")
# A drive that four ranks can keep busy with two processors.
_SLOW_MB_PER_S = 500


def run_vllm(session: Session) -> PartResult:
    """Measure vLLM's tiers."""
    result = _run(session, "vllm_tiers")
    result.notes.append(
        "vLLM's TieringOffloadingSpec makes both tiers over one shared region. They get jobs of 16 "
        "rows of 2 MiB, 4 of them at a time, and among stores 16 loads every 20 ms. kvring evicts "
        "at its capacity. fs keeps all."
    )
    return result


def run_sglang(session: Session) -> PartResult:
    """Measure SGLang's backends."""
    result = _run(session, "sglang_backends")
    result.notes.append(
        "Pages of 64 tokens, 2 MiB, called as SGLang's controller does: 128 at a time, and among "
        "stores 16 every 20 ms. `file` goes through the page cache: its stores end with a sync, "
        "and before loads the cache is emptied, but not among stores."
    )
    return result


def run_ranks(session: Session) -> PartResult:
    """Measure ranks that read from one store beside ranks with a store each."""
    result = _run(session, "ranks")
    try:
        slow = _run(session, "ranks", slow=True)
    except DeviceError as reason:
        result.skip(f"the same with a drive of {_SLOW_MB_PER_S} MB/s", reason)
    else:
        result.samples += [
            replace(one, case=f"{one.case}, a drive of {_SLOW_MB_PER_S} MB/s")
            for one in slow.samples
        ]
    result.notes.append(
        "MB/s of all ranks together, 128 pages of 4.3 MiB on each, in huge pages. With one store "
        "the drive reads each page twice, for the first rank and for all others; with a store "
        "each, once for each."
    )
    return result


def _run(session: Session, program: str, *, slow: bool = False) -> PartResult:
    result = PartResult()
    if not _PYTHON.exists():
        raise DeviceError(f"there is no {_PYTHON}: make engines")
    command = [str(_PYTHON), "-m", f"benches.compare.engines.{program}"]
    with (
        session.device(EXT4_LOOP) as device,
        tempfile.TemporaryDirectory(dir=device.directory) as work,
        _slow_reads(Path(work), wanted=slow) as group,
    ):
        result.device = {"name": device.name, **device.facts}
        progress(f"{program}{', with a slow drive' if slow else ''}")
        more = ["--rounds", str(session.scale.rounds)]
        if group is not None:
            more += ["--control-group", str(group)]
        with subprocess.Popen(
            [*command, work, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            output, errors = process.communicate()
        if process.returncode:
            raise OSError(f"{program} ended with {process.returncode}: {errors[-2000:]}")
    for line in output.splitlines():
        if line.startswith("{"):
            result.samples.append(Sample(**json.loads(line)))
    return result


@contextmanager
def _slow_reads(directory: Path, *, wanted: bool) -> Iterator[Path | None]:
    """Make a control group that reads a directory's device slowly (cgroup v1)."""
    if not wanted:
        yield None
        return
    if not (_CONTROLLER / "blkio.throttle.read_bps_device").exists():
        raise DeviceError("no cgroup (v1) throttles block devices here")
    group = _CONTROLLER / f"kvring-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise DeviceError(f"no control group can be made: {error}") from error
    try:
        number = directory.stat().st_dev
        rule = f"{os.major(number)}:{os.minor(number)} {_SLOW_MB_PER_S * 1_000_000}"
        (group / "blkio.throttle.read_bps_device").write_text(rule, encoding="ascii")
        yield group
    finally:
        group.rmdir()
