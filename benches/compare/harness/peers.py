"""Who is compared, each opened the way LMCache opens it."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import AdapterClient, Client, NativeClient
from tests.support.tuning import tuned

KVRING = "kvring"
KVRING_OFF = "kvring, checksum off"
PLUGIN = "kvring, plugin"
PLUGIN_OFF = "kvring, plugin, checksum off"
REGISTERED = "kvring, checksum off, registered memory"
FILES = "kvring, layout files"
BARE = "kvring, bare device"
BARE_OFF = "kvring, bare device, checksum off"
POSIX = "kvring, posix"
FILES_POSIX = "kvring, layout files, posix"
BARE_POSIX = "kvring, bare device, posix"
ONE_PATH = "kvring, 1 path"
ONE_PATH_TWO_THREADS = "kvring, 1 path, io_threads 2"
TWO_PATHS = "kvring, 2 paths"
FS_NATIVE = "fs_native, 4 workers"
FS_NATIVE_32 = "fs_native, 32 workers"
RAW_BLOCK = "raw_block"
FS = "fs"
FIO = "fio"

REGISTERED_SIZES_BYTES = (1 << 20, 4 << 20)

_RAW_BLOCK_HEADER_BYTES = 4096
_ALIGNMENT_BYTES = 4096
# So much at either end says to kvring what a device holds.
_END_SIZE_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a peer is opened, and for what."""

    directory: Path
    raw_device: Path | None
    arena: Arena
    chunk_size_bytes: int
    capacity_bytes: int


@dataclass(frozen=True)
class Peer:
    """Somebody to measure. `open` raises UnavailableError where it can't run."""

    name: str
    open: Callable[[Place], Client]
    # Share of the chunks by chunk size: those who would take minutes get fewer.
    shares: dict[int, float] = field(default_factory=dict)
    # It has the bare device to itself while it is measured, and is opened anew for each round.
    takes_turns: bool = False
    # It is measured with chunks of these sizes only; empty: of all.
    sizes_bytes: tuple[int, ...] = ()


class UnavailableError(RuntimeError):
    """A peer can't run here; the message says why."""


def kvring_peer(name: str, tuning: Mapping[str, Any] | None = None, **options: Any) -> Peer:
    """Return kvring with these options, and these settings that are no options."""

    def opened(place: Place) -> Client:
        kvring = importlib.import_module("kvring")
        with tuned(**(tuning or {})):
            settings = {"capacity": place.capacity_bytes, **options}
            connector = kvring.Connector(path=str(place.directory), **settings)
        return NativeClient(connector)

    return Peer(name, opened)


def build_peer(name: str, library: Path, **options: Any) -> Peer:
    """Return another build of kvring, by its native module, with these options."""

    def opened(place: Place) -> Client:
        settings = {"capacity": place.capacity_bytes, **options}
        connector = _native_module(name, library).Connector(path=str(place.directory), **settings)
        return NativeClient(connector)

    suffix = "".join(f", {option} {value}" for option, value in options.items())
    return Peer(f"kvring {name}{suffix}", opened)


@cache
def _native_module(name: str, library: Path) -> Any:
    """Load a native module beside the installed one: it is another one by its name and file."""
    loader = ExtensionFileLoader(f"kvring_{name}._native", str(library))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def bare_kvring_peer(name: str, **options: Any) -> Peer:
    """Return kvring on the bare device, which is formatted each time."""

    def opened(place: Place) -> Client:
        return NativeClient(bare_connector(place, **options))

    return Peer(name, opened, takes_turns=True)


def bare_connector(place: Place, **options: Any) -> Any:
    """Open kvring on the bare device of a place, which is formatted first."""
    if place.raw_device is None:
        raise UnavailableError("it needs a block device of its own")
    kvring = importlib.import_module("kvring")
    make_blank(place.raw_device)
    # A discard would punch holes into the image, and the puts would pay for filling them.
    settings = {"capacity": "all", "discard": "never", **options}
    return kvring.Connector(path=str(place.raw_device), **settings)


def two_paths_peer(name: str, second: Path) -> Peer:
    """Return kvring with half of its capacity at a second path, which is emptied first."""

    def opened(place: Place) -> Client:
        kvring = importlib.import_module("kvring")
        # A store that shared its keys with another one, now gone, would be refused.
        shutil.rmtree(second, ignore_errors=True)
        paths = [str(place.directory), str(second)]
        return NativeClient(kvring.Connector(paths, place.capacity_bytes // 2))

    return Peer(name, opened)


def make_blank(raw_device: Path) -> None:
    """Take off what another has left, or an earlier store: it is of no use any more."""
    with raw_device.open("r+b", buffering=0) as file:
        file.write(bytes(_END_SIZE_BYTES))
        file.seek(-_END_SIZE_BYTES, os.SEEK_END)
        file.write(bytes(_END_SIZE_BYTES))
        os.fsync(file.fileno())


def fs_native_peer(name: str, workers: int) -> Peer:
    """Return LMCache's C++ file-per-chunk client, opened as its `fs_native` adapter does."""

    def opened(place: Place) -> Client:
        lmcache_fs = importlib.import_module("lmcache.lmcache_fs")
        relative_tmp_dir, use_odirect, read_ahead_size_bytes = "", True, 0
        client = lmcache_fs.LMCacheFSClient(
            str(place.directory), workers, relative_tmp_dir, use_odirect, read_ahead_size_bytes
        )
        return NativeClient(client)

    return Peer(name, opened, {4096: 1 / 4, 65536: 1 / 2})


def _open_fs(place: Place) -> Client:
    from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig

    adapter = FSL2Adapter(FSL2AdapterConfig(str(place.directory), use_odirect=True))
    return AdapterClient(adapter, {"direct_io": True})


def raw_block_settings(raw_device: Path, chunk_size_bytes: int) -> dict[str, Any]:
    """Return how LMCache's `raw_block` adapter is configured, but for its type."""
    return {
        "device_path": str(raw_device),
        "slot_bytes": chunk_size_bytes + _RAW_BLOCK_HEADER_BYTES,
        "io_engine": "io_uring",
        "use_odirect": True,
        "load_checkpoint_on_init": False,
        "meta_enable_periodic": False,
    }


def _open_raw_block(place: Place) -> Client:
    if place.raw_device is None:
        raise UnavailableError("it needs a block device of its own")
    try:
        importlib.import_module("lmcache_rust_raw_block_io")
    except ImportError as error:
        raise UnavailableError(f"{error}: pip install -r requirements/bench.txt") from error
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.distributed.l2_adapters.raw_block_l2_adapter import (
        RawBlockL2Adapter,
        RawBlockL2AdapterConfig,
    )

    settings = raw_block_settings(place.raw_device, place.chunk_size_bytes)
    size_bytes = place.arena.size_bytes
    # The whole arena as fixed buffers of its ring: what it is fastest with.
    memory = L1MemoryDesc(place.arena.address, size_bytes, _ALIGNMENT_BYTES, size_bytes)
    adapter = RawBlockL2Adapter(RawBlockL2AdapterConfig.from_dict(settings), memory)
    return AdapterClient(adapter, {"engine": "io_uring", "direct_io": True})


RAW_BLOCK_PEER = Peer(RAW_BLOCK, _open_raw_block, {4096: 1 / 4, 65536: 1 / 2})
FS_PEER = Peer(FS, _open_fs, {4096: 1 / 16, 65536: 1 / 8, 262144: 1 / 4})


def lmcache_peers(*, every_peer: bool) -> list[Peer]:
    """Return LMCache's own."""
    first = fs_native_peer(FS_NATIVE, 4)
    if not every_peer:
        return [first]
    return [first, fs_native_peer(FS_NATIVE_32, 32), RAW_BLOCK_PEER, FS_PEER]


def registered_peer() -> Peer:
    """Return kvring that knows the whole arena as registered memory."""

    def opened(place: Place) -> Client:
        kvring = importlib.import_module("kvring")
        connector = kvring.Connector(
            path=str(place.directory), capacity=place.capacity_bytes, checksum="off"
        )
        arena = place.arena
        return NativeClient(connector, connector.register_memory(arena.address, arena.size_bytes))

    return Peer(REGISTERED, opened, sizes_bytes=REGISTERED_SIZES_BYTES)


def versions() -> dict[str, str]:
    """Return the versions of the packages that are measured."""
    packages = ("kvring", "lmcache", "lmcache-rust-raw-block-io")
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
