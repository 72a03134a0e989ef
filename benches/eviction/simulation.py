"""Runs the simulator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parent.parent.parent

Document = dict[str, Any]


def simulate(
    traces: dict[str, Path],
    *,
    requests: int | None = None,
    replay: Path | None = None,
    release: bool = True,
) -> Document:
    """Play traces, those made by rule among them, to caches with each policy.

    Args:
        traces: Files by name, as `traces.convert` writes them.
        requests: Of each trace made by rule; None for as many as the simulator likes.
        replay: A new directory for a whole store, to which one-off prompts are played instead.
        release: Whether it is worth building it optimized.

    Returns:
        What the simulator says.

    Raises:
        subprocess.CalledProcessError: It cannot be built or run.
    """
    command = ["cargo", "run", "--quiet", "--features", "bench", "--example", "eviction_simulator"]
    if release:
        command.append("--release")
    command.append("--")
    if requests is not None:
        command += ["--requests", str(requests)]
    if replay is not None:
        command += ["--replay", str(replay)]
    command += [part for name, path in traces.items() for part in ("--trace", f"{name}={path}")]
    printed = subprocess.run(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, check=True)
    document: Document = json.loads(printed.stdout)
    return document
