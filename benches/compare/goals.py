"""What kvring set out to reach, beside what was measured. Pure: it reads samples only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benches.compare import sections
from benches.compare.deletes import COMPLETION_TIME, DELETE_UNDER_LOAD
from benches.compare.failing import ALONE, BEFORE, FAILING, MEANWHILE, SURVIVING_RATE
from benches.compare.lmcache_bench import LOAD, LOOKUP, STORE
from benches.compare.lookups import EXISTS, HIT_PERCENTS, case_of
from benches.compare.mixed import KVRING_ALONE, MIXED, P99
from benches.compare.peers import (
    BARE,
    FIO,
    FS_NATIVE,
    FS_NATIVE_CACHED,
    KVRING,
    KVRING_OFF,
    PEERS,
    RAW_BLOCK,
    UNPRIORITISED,
)
from benches.compare.samples import CPU, KEY_RATE, RATE, Cell, Samples, Spread, figure, size_text
from benches.compare.scale import KIB, MIB
from benches.compare.transfers import DELETE, GET, PUT

REACHED = "reached"
MISSED = "missed"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Goal:
    """One goal, and what was measured for it."""

    what: str
    compared_with: str
    target: float
    measured: Spread | None
    at_least: bool = True
    unit: str = "x"

    @property
    def verdict(self) -> str:
        """Say whether the median reaches the goal."""
        if self.measured is None:
            return NOT_MEASURED
        middle = self.measured.median
        return (
            REACHED if (middle >= self.target) == self.at_least or middle == self.target else MISSED
        )

    @property
    def target_text(self) -> str:
        """Write the goal."""
        return f"{'>=' if self.at_least else '<='} {figure(self.target)} {self.unit}"

    @property
    def measured_text(self) -> str:
        """Write what was measured."""
        return "" if self.measured is None else f"{self.measured.text()} {self.unit}"


Measured = Mapping[str, Samples]

_SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 32 * MIB)
_PUT_DISK = dict(zip(_SIZES, (10, 2, 1.4, 1.2, 1, 1), strict=True))
_GET_DISK = dict(zip(_SIZES, (4, 1.1, 1, 1, 1, 1), strict=True))
_PUT_ZRAM = dict(zip(_SIZES, (15, 5, 1.6, 1.3, 1, 1), strict=True))
_BARE = {64 * KIB: 2.0, MIB: 1.0, 4 * MIB: 1.0, 32 * MIB: 1.0}
_GET_ZRAM = {4 * KIB: 2.5, 64 * KIB: 1.3, MIB: 1.15, 4 * MIB: 1.0, 32 * MIB: 1.0}


def goals(measured: Measured) -> list[Goal]:
    """Return every goal, also those for which nothing was measured."""
    return [
        *_against_peers(measured),
        *_against_raw_block(measured),
        *_against_fio(measured),
        *_cpu(measured),
        *_mixed(measured),
        *_failing(measured),
        *_keys(measured),
        *_bench_l2(measured),
        *_verification(measured),
    ]


def _section(measured: Measured, name: str) -> Samples:
    return measured.get(name, Samples())


def _against_peers(measured: Measured) -> Iterator[Goal]:
    disk, zram = _section(measured, sections.DISK), _section(measured, sections.ZRAM)
    for operation, targets in ((PUT, _PUT_DISK), (GET, _GET_DISK)):
        for size_bytes, target in targets.items():
            cell = Cell(operation, size_bytes)
            yield _rate_goal(f"{operation} {size_text(size_bytes)}, disk", disk, cell, target)
    for operation, targets in ((PUT, _PUT_ZRAM), (GET, _GET_ZRAM)):
        for size_bytes, target in targets.items():
            cell = Cell(operation, size_bytes)
            candidates = [peer for peer in zram.peers() if peer.startswith(KVRING_OFF)]
            ours = zram.best(cell, candidates, RATE) or KVRING_OFF
            what = f"{operation} {size_text(size_bytes)}, zram, {_without_name(ours)}"
            yield _rate_goal(what, zram, cell, target, ours)


def _without_name(peer: str) -> str:
    return peer.removeprefix(f"{KVRING}, ")


def _rate_goal(
    what: str,
    samples: Samples,
    cell: Cell,
    target: float,
    ours: str = KVRING,
    metric: str = RATE,
) -> Goal:
    """Compare with the peer of the greatest median."""
    # Stores and loads through the page cache are no comparison; lookups are.
    peers = (*PEERS, FS_NATIVE_CACHED) if cell.operation == LOOKUP else PEERS
    best = samples.best(cell, peers, metric)
    ratio = samples.ratio(cell, ours, best, metric) if best else None
    return Goal(what, best or "best peer", target, ratio)


def _against_raw_block(measured: Measured) -> Iterator[Goal]:
    bare = _section(measured, sections.BARE)
    for operation in (PUT, GET):
        for size_bytes, target in _BARE.items():
            ratio = bare.ratio(Cell(operation, size_bytes), BARE, RAW_BLOCK, RATE)
            yield Goal(
                f"{operation} {size_text(size_bytes)}, bare device", RAW_BLOCK, target, ratio
            )


def _failing(measured: Measured) -> Iterator[Goal]:
    samples = _section(measured, sections.FAILING)
    for phase in (MEANWHILE, ALONE):
        ratio = samples.ratio(Cell(FAILING, MIB), phase, BEFORE, SURVIVING_RATE)
        yield Goal(f"keys of the surviving path, MB/s, {phase}", BEFORE, 0.9, ratio)


def _against_fio(measured: Measured) -> Iterator[Goal]:
    disk = _section(measured, sections.DISK)
    for operation in (PUT, GET):
        for size_bytes in _SIZES[1:]:
            ratio = disk.ratio(Cell(operation, size_bytes), KVRING, FIO, RATE)
            yield Goal(f"{operation} {size_text(size_bytes)}, disk", FIO, 0.95, ratio)


def _cpu(measured: Measured) -> Iterator[Goal]:
    disk = _section(measured, sections.DISK)
    for operation, target in ((PUT, 1 / 8), (GET, 1 / 4)):
        ratio = disk.ratio(Cell(operation, MIB), KVRING_OFF, FS_NATIVE, CPU)
        what = f"CPU of {operation} 1 MiB, disk, checksum off"
        yield Goal(what, FS_NATIVE, target, ratio, at_least=False)
    for operation in (PUT, GET):
        with_checksum = disk.series(Cell(operation, MIB), KVRING, CPU)
        without = disk.series(Cell(operation, MIB), KVRING_OFF, CPU)
        rounds = with_checksum.keys() & without.keys()
        extra = [with_checksum[number] - without[number] for number in rounds]
        what = f"CPU that the checksum adds to {operation} 1 MiB, disk"
        spread = Spread.of(extra) if extra else None
        yield Goal(what, KVRING_OFF, 0.12, spread, at_least=False, unit="s/GB")


def _mixed(measured: Measured) -> Iterator[Goal]:
    cell = Cell(MIXED, MIB)
    disk, zram = (_section(measured, name) for name in (sections.MIXED_DISK, sections.MIXED_ZRAM))
    p99 = "p99 of GET batches among SETs"
    sets = "SETs among GET batches, MB/s"
    for what, samples, other, metric, target in (
        (f"{p99}, disk", disk, FS_NATIVE, P99, 1 / 5),
        (f"{p99}, disk", disk, KVRING_ALONE, P99, 1.6),
        (f"{sets}, disk", disk, UNPRIORITISED, RATE, 0.9),
        (f"{p99}, zram", zram, FS_NATIVE, P99, 1 / 3),
        (f"{sets}, zram", zram, UNPRIORITISED, RATE, 1.0),
    ):
        ratio = samples.ratio(cell, KVRING, other, metric)
        yield Goal(what, other, target, ratio, at_least=metric == RATE)


def _keys(measured: Measured) -> Iterator[Goal]:
    exists = _section(measured, sections.EXISTS)
    for hit_percent in HIT_PERCENTS:
        spread = exists.spread(Cell(EXISTS, 0, case_of(hit_percent)), KVRING, KEY_RATE)
        what = f"exists, batches of 256, {case_of(hit_percent)}"
        yield Goal(what, "", 1e6, spread, unit="keys/s")
    disk = _section(measured, sections.DISK)
    # Of 32 MiB too few are stored for a full batch: their figure is the time of a single call.
    for size_bytes in _SIZES[:-1]:
        spread = disk.spread(Cell(DELETE, size_bytes), KVRING, KEY_RATE)
        yield Goal(f"delete, chunks of {size_text(size_bytes)}", "", 5e5, spread, unit="keys/s")
    deletes = _section(measured, sections.DELETES)
    cells = deletes.cells(DELETE_UNDER_LOAD)
    spread = deletes.spread(cells[0], KVRING, COMPLETION_TIME) if cells else None
    count = cells[0].case if cells else "130,000 keys"
    what = f"delete of {count} in one call while loads run"
    yield Goal(what, "", 0.5, spread, at_least=False, unit="s")


def _bench_l2(measured: Measured) -> Iterator[Goal]:
    samples = _section(measured, sections.BENCH_L2)
    for operation, metric, target in (
        (STORE, RATE, 1.0),
        (LOOKUP, KEY_RATE, 3.0),
        (LOAD, RATE, 1.0),
    ):
        cells = samples.cells(operation)
        for cell in cells:
            what = f"bench l2 {operation}, {size_text(cell.chunk_size_bytes)} {cell.case}"
            yield _rate_goal(what, samples, cell, target, metric=metric)
        if not cells:
            yield Goal(f"bench l2 {operation}", "best peer", target, None)


def _verification(measured: Measured) -> Iterator[Goal]:
    disk = _section(measured, sections.DISK)
    for operation in (PUT, GET):
        ratio = disk.ratio(Cell(operation, MIB), KVRING, KVRING_OFF, RATE)
        yield Goal(f"{operation} 1 MiB with checksum, disk", KVRING_OFF, 0.95, ratio)
