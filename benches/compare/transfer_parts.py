"""The parts that put, get and delete by chunk size: who is measured in each, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benches.compare.peers import (
    BARE,
    BARE_OFF,
    BARE_POSIX,
    FILES,
    FILES_POSIX,
    KVRING,
    KVRING_OFF,
    ONE_PATH,
    ONE_PATH_TWO_THREADS,
    POSIX,
    RAW_BLOCK_PEER,
    TWO_PATHS,
    Peer,
    bare_kvring_peer,
    build_peers,
    io_threads_peers,
    kvring_peer,
    lmcache_peers,
    more_workers,
    registered_peer,
    two_paths_peer,
)
from benches.compare.scale import Plan
from benches.compare.session import SectionResult, Session
from benches.compare.transfers import run_transfers
from tests.support.devices import EXT4_LOOP, XFS_ZRAM, ext4_on

# Other values of the constants that are there for speed.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "queue_depth": (32, 512),
    "max_io_bytes": (256 << 10, 1 << 20, 4 << 20),
    "set_in_flight_bytes": (8 << 20,),
    "registered_files": (False,),
}
_FEWER_SIZES_BYTES = (4096, 64 << 10, 1 << 20, 32 << 20)

_TURNS_NOTE = (
    "One after the other has the bare device to itself: each is opened anew for its round, "
    "formats what the one before has left, and writes as much as counts once, untimed, before it."
)


def run_on_disk(session: Session) -> SectionResult:
    """Measure on ext4 over a loop device."""
    return _run_with_peers(session, EXT4_LOOP, [])


def run_on_zram(session: Session) -> SectionResult:
    """Measure on XFS over zram: software alone."""
    others = more_workers() if session.scale.every_peer else []
    return _run_with_peers(session, XFS_ZRAM, others)


def run_threads_on_disk(session: Session) -> SectionResult:
    """Measure kvring's own choice of threads beside fixed numbers, on the disk."""
    return _run_threads(session, EXT4_LOOP, [kvring_peer(KVRING), *io_threads_peers()])


def run_threads_on_zram(session: Session) -> SectionResult:
    """Measure the same on XFS over zram, without checksum too."""
    peers = [kvring_peer(KVRING), *io_threads_peers()]
    peers += [kvring_peer(KVRING_OFF, checksum="off"), *io_threads_peers(checksum="off")]
    return _run_threads(session, XFS_ZRAM, peers)


def _run_threads(session: Session, device_name: str, peers: list[Peer]) -> SectionResult:
    result = run_transfers(session, device_name, peers, list(session.scale.plans))
    result.notes.append("Without a word about it kvring chooses the number of threads by itself.")
    return result


def run_settings(session: Session) -> SectionResult:
    """Measure kvring's own settings beside its defaults, on XFS over zram, where software shows."""
    peers = [kvring_peer(KVRING)]
    peers += [
        kvring_peer(f"{name} {value}", {name: value})
        for name, values in SETTINGS.items()
        for value in values
    ]
    result = run_transfers(session, XFS_ZRAM, peers, _fewer_plans(session))
    result.notes.append("Each column is kvring with its defaults but for one option or constant.")
    return result


def run_bare(session: Session) -> SectionResult:
    """Measure on a bare loop device, which one after the other has to itself."""
    peers = [
        bare_kvring_peer(BARE),
        bare_kvring_peer(BARE_OFF, checksum="off"),
        replace(RAW_BLOCK_PEER, takes_turns=True),
    ]
    result = run_transfers(session, EXT4_LOOP, peers, list(session.scale.plans))
    result.notes.append(_TURNS_NOTE)
    return result


def run_layouts(session: Session) -> SectionResult:
    """Measure kvring's layouts and engines beside each other, on the disk."""
    few_files = {4096: 1 / 4}
    peers = [
        kvring_peer(KVRING),
        replace(kvring_peer(FILES, layout="files"), shares=few_files),
        bare_kvring_peer(BARE),
        kvring_peer(POSIX, engine="posix"),
        replace(kvring_peer(FILES_POSIX, layout="files", engine="posix"), shares=few_files),
        bare_kvring_peer(BARE_POSIX, engine="posix"),
    ]
    result = run_transfers(session, EXT4_LOOP, peers, list(session.scale.plans))
    result.notes += [
        "The bare device is a loop device like the one below ext4, over a file on the same disk. "
        + _TURNS_NOTE,
        "Without a word about it the layout is extents, and the engine io_uring.",
    ]
    return result


def run_paths(session: Session) -> SectionResult:
    """Measure one path beside two, each ext4 on a loop device of its own over the same disk."""
    with ext4_on(session.second_block(), session.results_directory) as second:
        peers = [
            kvring_peer(ONE_PATH),
            kvring_peer(ONE_PATH_TWO_THREADS, io_threads=2),
            two_paths_peer(TWO_PATHS, second / "second-path"),
        ]
        result = run_transfers(session, EXT4_LOOP, peers, _fewer_plans(session))
    result.notes.append(
        "Two paths have reactors of their own, so one path with two io_threads stands beside them. "
        "Both loop devices lie on the same disk: this shows what spreading the keys costs, and not "
        "what a second disk gives."
    )
    return result


def _fewer_plans(session: Session) -> list[Plan]:
    return [plan for plan in session.scale.plans if plan.chunk_size_bytes in _FEWER_SIZES_BYTES]


def _run_with_peers(session: Session, device_name: str, others: list[Peer]) -> SectionResult:
    peers = [
        kvring_peer(KVRING),
        kvring_peer(KVRING_OFF, checksum="off"),
        *build_peers(session.builds),
        registered_peer(),
        *lmcache_peers(every_peer=session.scale.every_peer),
        *others,
    ]
    return run_transfers(session, device_name, peers, list(session.scale.plans))
