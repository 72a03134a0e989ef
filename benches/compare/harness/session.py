"""What every part is given, and what it gives back."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Client
from benches.compare.harness.peers import Peer, Place, UnavailableError
from benches.compare.harness.samples import Sample
from benches.compare.harness.scale import Scale
from tests.support.devices import (
    EXT4_LOOP,
    Device,
    DeviceError,
    LoopPair,
    directory_device,
    ext4_loop_device,
    loop_block,
    loop_pair,
    xfs_zram_device,
)


@dataclass
class Session:
    """The command line's wishes, and what is made once: memory, and files under loop devices."""

    scale: Scale
    results_directory: Path
    huge_pages: bool
    path: Path | None
    more_peers: list[Peer]
    stack: ExitStack
    _arenas: dict[bool, Arena] = field(default_factory=dict)
    _loops: LoopPair | None = None
    _second_block: Path | None = None

    def arena(self, *, same_filled: bool) -> Arena:
        """Return the memory, kept from one part to the next of the same kind."""
        if same_filled not in self._arenas:
            self._arenas.clear()
            self._arenas[same_filled] = Arena(
                self.scale.arena_half_size_bytes,
                huge_pages=self.huge_pages,
                same_filled=same_filled,
            )
        return self._arenas[same_filled]

    def device(self, name: str) -> AbstractContextManager[Device]:
        """Make a device by name; `--path` stands in for the disk."""
        if name == EXT4_LOOP and self.path is not None:
            return directory_device(self.path)
        self.results_directory.mkdir(parents=True, exist_ok=True)
        size_bytes = self.scale.file_system_size_bytes
        raw_size_bytes = self.scale.raw_device_size_bytes
        if name == EXT4_LOOP:
            if self._loops is None:
                progress(f"writing {(size_bytes + raw_size_bytes) / 1e9:.0f} GB for loop devices")
                made = loop_pair(self.results_directory, size_bytes, raw_size_bytes)
                self._loops = self.stack.enter_context(made)
            return ext4_loop_device(self._loops)
        # Same-filled pages take no memory: room for the many kvrings that are open side by side.
        return xfs_zram_device(self.results_directory, 2 * size_bytes, raw_size_bytes)

    def second_block(self) -> Path:
        """Make one more loop device, for a second path."""
        if self.path is not None:
            raise DeviceError("a second path needs loop devices: leave --path away")
        if self._second_block is None:
            size_bytes = self.scale.second_device_size_bytes
            progress(f"writing {size_bytes / 1e9:.0f} GB for one more loop device")
            made = loop_block(self.results_directory, size_bytes)
            self._second_block = self.stack.enter_context(made)
        return self._second_block


@dataclass
class PartResult:
    """What was measured."""

    samples: list[Sample] = field(default_factory=list)
    device: dict[str, str] = field(default_factory=dict)
    peers: dict[str, dict[str, object]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def skip(self, what: str, why: object) -> None:
        """Note, and say, that something is left out."""
        line = f"{what}: {why}"
        if line not in self.skipped:
            self.skipped.append(line)
            progress(f"skipped: {line}")


_STARTED_S = time.monotonic()

Part = Callable[[Session], PartResult]


def progress(line: str) -> None:
    """Say on standard error what happens now."""
    print(f"{time.monotonic() - _STARTED_S:5.0f} s  {line}", file=sys.stderr, flush=True)


@contextmanager
def open_peer(
    peer: Peer,
    label: str,
    device: Device,
    session: Session,
    arena: Arena,
    chunk_size_bytes: int,
    result: PartResult,
) -> Iterator[Client]:
    """Open one peer, in a directory of its own that is removed after.

    Raises:
        UnavailableError: It can't run here.
    """
    with ExitStack() as stack:
        directory = device.directory / f"peer-{label}"
        directory.mkdir()
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        capacity_bytes = session.scale.kvring_capacity_bytes
        client = peer.open(
            Place(directory, device.raw_device, arena, chunk_size_bytes, capacity_bytes)
        )
        stack.callback(client.close)
        yield client
        result.peers[peer.name] = client.facts()


@contextmanager
def open_peers(
    peers: list[Peer],
    device: Device,
    session: Session,
    arena: Arena,
    chunk_size_bytes: int,
    result: PartResult,
) -> Iterator[dict[str, Client]]:
    """Open all peers that can run here, side by side."""
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        for number, peer in enumerate(peers):
            opened = open_peer(peer, str(number), device, session, arena, chunk_size_bytes, result)
            try:
                clients[peer.name] = stack.enter_context(opened)
            except UnavailableError as reason:
                result.skip(peer.name, reason)
        yield clients


def sync_device(device: Device) -> None:
    """Write out what is still dirty, also of the bare device, so that nobody is timed with it."""
    sync_file_system(device.directory)
    if device.raw_device is not None:
        descriptor = os.open(device.raw_device, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file_system(directory: Path) -> None:
    """Write out what is still dirty, so that nobody is timed with it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), f"syncfs on {directory}")
    finally:
        os.close(descriptor)
