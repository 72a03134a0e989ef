"""How long a store of many keys takes to open, and the memory that a key takes.

`python -m benches.compare.opening DIRECTORY CAPACITY_BYTES` opens a store once, and says in JSON
what that took.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benches.compare.harness.clients import NativeClient
from benches.compare.harness.peers import KVRING
from benches.compare.harness.samples import Sample
from benches.compare.harness.session import PartResult, Session, progress
from benches.compare.harness.workload import TransferError, timed
from tests.support.devices import xfs_zram_device

_NAMESPACE = "meta-llama/Llama-3.1-8B-Instruct@00010001@0"
_CHUNK_SIZE_BYTES = 4096
# What the index leaves room for, whatever the chunks have.
_SPACE_FOR_A_KEY_BYTES = 16 << 10
_BATCH_KEYS = 256
_BESIDES_BYTES = 1 << 30


def case_of(key_count: int) -> str:
    """Return how a number of keys is named."""
    return f"{key_count:,} keys"


def run(session: Session) -> PartResult:
    """Measure on XFS over zram: chunks of one repeated word take no memory there."""
    result = PartResult()
    for key_count in session.scale.open_keys:
        capacity_bytes = key_count * _SPACE_FOR_A_KEY_BYTES + _BESIDES_BYTES
        directory = session.results_directory
        directory.mkdir(parents=True, exist_ok=True)
        # XFS keeps a part of it to itself.
        device_bytes = capacity_bytes + capacity_bytes // 8 + _BESIDES_BYTES
        with xfs_zram_device(directory, device_bytes, _BESIDES_BYTES) as device:
            result.device = {"name": device.name, **device.facts}
            store = device.directory / "store"
            progress(f"storing {case_of(key_count)}")
            _fill(store, capacity_bytes, key_count)
            for round_number in range(session.scale.open_rounds):
                progress(f"opening {case_of(key_count)}, round {round_number + 1}")
                values = _opened(store, capacity_bytes, key_count)
                result.samples.append(Sample(case_of(key_count), KVRING, round_number, values))
    result.notes.append(
        "Each open is in a new process, after a close, with the index in the page cache. Memory: "
        "growth of RssAnon by key. Chunks of 4 KiB."
    )
    return result


def _fill(store: Path, capacity_bytes: int, key_count: int) -> None:
    client = NativeClient(importlib.import_module("kvring").Connector(str(store), capacity_bytes))
    memory = memoryview(bytes(_CHUNK_SIZE_BYTES))

    def stored(numbers: range) -> int:
        names = [f"{_NAMESPACE}@{number:064x}" for number in numbers]
        return client.submit_set(names, [memory] * len(names))

    batches = (
        range(first, min(first + _BATCH_KEYS, key_count))
        for first in range(0, key_count, _BATCH_KEYS)
    )
    try:
        timed(client, (partial(stored, batch) for batch in batches))
    finally:
        client.close()


def _opened(store: Path, capacity_bytes: int, key_count: int) -> dict[str, float]:
    command = (sys.executable, "-m", __name__, str(store), str(capacity_bytes))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TransferError(
            f"a store of {case_of(key_count)} cannot be opened: {done.stderr[-300:]}"
        )
    said = json.loads(done.stdout)
    if said["keys"] != key_count:
        raise TransferError(
            f"the store has other keys than were stored: {said['keys']:,} of {key_count:,}"
        )
    return {
        "duration_s": said["open_s"],
        "key_memory_bytes": said["memory_bytes"] / key_count,
    }


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(one for one in status.splitlines() if one.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Open the store that the arguments name, and print what it took."""
    kvring: Any = importlib.import_module("kvring")
    before_bytes, started_s = _resident_bytes(), time.perf_counter()
    connector = kvring.Connector(sys.argv[1], int(sys.argv[2]))
    open_s = time.perf_counter() - started_s
    said = {
        "open_s": open_s,
        "memory_bytes": _resident_bytes() - before_bytes,
        "keys": connector.stats()["keys"],
    }
    connector.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
