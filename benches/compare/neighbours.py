"""Small chunks that lie side by side: does it pay to join their transfers?

kvring joins none. In one column the kernel joins none either, and in another each batch is one
chunk: no joining in kvring could gain more than that. The device is a bare one over the disk, which
has a latency; over memory each transfer costs the same.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benches.compare.arena import Arena
from benches.compare.clients import Client, Completion, NativeClient
from benches.compare.fio import require_fio
from benches.compare.peers import BARE_OFF, Peer, Place, bare_connector, bare_kvring_peer
from benches.compare.scale import KIB
from benches.compare.session import SectionResult, Session
from benches.compare.transfers import run_transfers
from tests.support.devices import EXT4_LOOP, DeviceError

NOT_JOINED = "the kernel joins nothing"
ONE_CHUNK = "a batch is one chunk"

_JOIN_NOTHING = "2"
_LATENCY_READS = 2000


def run(session: Session) -> SectionResult:
    """Measure chunks of 4 and 16 KiB, in batches of 32."""
    with session.device(EXT4_LOOP) as device:
        if device.raw_device is None:
            raise DeviceError("it needs a bare device: leave --path away")
        latency_us = _read_latency_us(device.raw_device)
    smallest = min(session.scale.plans, key=lambda plan: plan.chunk_size_bytes)
    longer = replace(smallest, chunk_size_bytes=16 * KIB, chunk_count=smallest.chunk_count // 2)
    peers = [
        bare_kvring_peer(BARE_OFF, checksum="off"),
        Peer(NOT_JOINED, _open_not_joined, takes_turns=True),
        Peer(ONE_CHUNK, _open_one_chunk, takes_turns=True),
    ]
    result = run_transfers(session, EXT4_LOOP, peers, [smallest, longer])
    result.notes.append(
        f"The device answers one read of 4 KiB at a time in {latency_us:.0f} us (median, by fio). "
        f"Chunks of a batch lie side by side. {NOT_JOINED.capitalize()}: queue/nomerges of the "
        f"device is 2. {ONE_CHUNK.capitalize()}: one key and one transfer for all of its bytes; "
        "that is more than joined transfers of single keys can give."
    )
    return result


def _read_latency_us(device: Path) -> float:
    require_fio()
    command = (
        *("fio", "--name=latency", f"--filename={device}", "--output-format=json"),
        *("--ioengine=io_uring", "--direct=1", "--rw=randread", "--bs=4096", "--iodepth=1"),
        *("--readonly", f"--number_ios={_LATENCY_READS}"),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return float(job["read"]["clat_ns"]["percentile"]["50.000000"]) / 1e3


class QueueSetting:
    """Takes joining away from a block device, until it is closed."""

    def __init__(self, setting: Path) -> None:
        self._setting, self._before = setting, setting.read_text(encoding="ascii")
        setting.write_text(_JOIN_NOTHING, encoding="ascii")

    def close(self) -> None:
        """Give back what was there before."""
        self._setting.write_text(self._before, encoding="ascii")


def _open_not_joined(place: Place) -> Client:
    connector = bare_connector(place, checksum="off")
    assert place.raw_device is not None
    queue = Path("/sys/block", place.raw_device.name, "queue")
    return NativeClient(connector, QueueSetting(queue / "nomerges"))


def _open_one_chunk(place: Place) -> Client:
    return NativeClient(OneChunk(bare_connector(place, checksum="off"), place.arena))


class OneChunk:
    """A connector that stores and loads each batch under its first key, as one chunk."""

    def __init__(self, connector: Any, arena: Arena) -> None:
        self._connector, self._arena = connector, arena
        self._stored: set[str] = set()

    def event_fd(self) -> int:
        """Return the connector's."""
        return int(self._connector.event_fd())

    def submit_batch_set(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Store them as one."""
        self._stored.add(keys[0])
        return int(self._connector.submit_batch_set(keys[:1], [self._arena.joined(memoryviews)]))

    def submit_batch_get(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Load them as one."""
        return int(self._connector.submit_batch_get(keys[:1], [self._arena.joined(memoryviews)]))

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Look the keys up, each for itself."""
        return int(self._connector.submit_batch_exists(keys))

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Remove the batches that begin with one of these keys."""
        stored = [key for key in keys if key in self._stored]
        self._stored.difference_update(stored)
        return int(self._connector.submit_batch_delete(stored))

    def drain_completions(self) -> Sequence[Completion]:
        """Return the connector's."""
        completions: Sequence[Completion] = self._connector.drain_completions()
        return completions

    def stats(self) -> dict[str, object]:
        """Return the connector's."""
        said: dict[str, object] = self._connector.stats()
        return said

    def close(self) -> None:
        """Close the connector, and let go of it."""
        self._connector.close()
        del self._connector
