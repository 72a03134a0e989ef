"""fio's io_uring engine: what the device gives at the same size and depth."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from benches.compare.harness.samples import CPU, RATE
from benches.compare.harness.scale import Plan
from benches.compare.harness.session import progress

PUT = "put"
GET = "get"
_INSTALL_TIMEOUT_S = 300.0
_RUN_TIMEOUT_S = 300.0


class FioError(RuntimeError):
    """fio is not here, or failed; the message says why."""


@cache
def require_fio() -> None:
    """Install fio if it is missing and this is root.

    Raises:
        FioError: It is not to be had.
    """
    if shutil.which("fio") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise FioError("fio is not installed (apt-get install fio), and this is not root on Debian")
    progress("installing fio")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (("apt-get", "update"), ("apt-get", "install", "--yes", "fio")):
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0 or shutil.which("fio") is None:
        raise FioError(f"apt-get could not install fio: {done.stderr.strip()[-200:]}")


def fio_version() -> str:
    """Return fio's version, or that there is none."""
    if shutil.which("fio") is None:
        return "not installed"
    done = subprocess.run(("fio", "--version"), capture_output=True, text=True, check=False)
    return done.stdout.strip()


def fio_command(operation: str, plan: Plan, file: str, *, same_filled: bool) -> list[str]:
    """Return fio's command line for one transfer."""
    return [
        *("fio", "--name=limit", f"--filename={file}", "--output-format=json"),
        *("--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1"),
        f"--rw={'read' if operation == GET else 'write'}",
        *(f"--bs={plan.chunk_size_bytes}", f"--iodepth={plan.depth}"),
        *(f"--size={plan.size_bytes}", "--fallocate=none", "--overwrite=1"),
        *(("--zero_buffers=1",) if same_filled else ()),
    ]


def run_fio(operation: str, plan: Plan, file: Path, *, same_filled: bool) -> dict[str, float]:
    """Transfer the file once.

    Args:
        operation: "put" or "get".
        plan: Size, number and depth of the transfers.
        file: It is overwritten in place; the first run writes it in full.
        same_filled: Write the same byte everywhere.

    Returns:
        Rate and processor time.

    Raises:
        FioError: It is not installed, or failed.
    """
    require_fio()
    done = subprocess.run(
        fio_command(operation, plan, str(file), same_filled=same_filled),
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise FioError(f"fio failed: {(done.stderr or done.stdout).strip()[-200:]}")
    return parse_fio(done.stdout, operation)


def parse_fio(output: str, operation: str) -> dict[str, float]:
    """Read rate and processor time out of fio's JSON."""
    # Warnings come before it.
    job: dict[str, Any] = json.loads(output[output.index("{") :])["jobs"][0]
    side = job["read" if operation == GET else "write"]
    size_bytes, elapsed_s = float(side["io_bytes"]), float(side["runtime"]) / 1000
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * float(job["job_runtime"]) / 1000
    return {RATE: size_bytes / 1e6 / elapsed_s, CPU: cpu_s / (size_bytes / 1e9)}
