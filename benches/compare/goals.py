"""What kvring set out to reach, beside what was measured. Pure: it reads samples only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benches.compare import growth, sections, server
from benches.compare.checksum import allowed_rates
from benches.compare.lmcache_bench import LOAD, LOOKUP, STORE
from benches.compare.mixed import KVRING_ALONE, MIXED, P99
from benches.compare.opening import KEY_MEMORY, OPEN, OPEN_TIME, case_of
from benches.compare.peers import (
    BARE,
    FIO,
    FS_NATIVE,
    FS_NATIVE_32,
    IO_THREADS,
    KVRING,
    KVRING_OFF,
    PEERS,
    PLUGIN,
    RAW_BLOCK,
    REGISTERED,
    REGISTERED_SIZES_BYTES,
    io_threads_name,
)
from benches.compare.samples import (
    CPU,
    KEY_RATE,
    RATE,
    Cell,
    Samples,
    Spread,
    figure,
    ratio_of,
    size_text,
)
from benches.compare.scale import KIB, MIB
from benches.compare.transfers import GET, PUT

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


def goals(measured: Measured) -> list[Goal]:
    """Return every goal, also those for which nothing was measured."""
    return [
        *_at_memory_speed(measured),
        *_small_chunks(measured),
        *_threads(measured),
        *_registered(measured),
        *_mixed(measured),
        *_opening(measured),
        *_growth(measured),
        *_through_lmcache(measured),
    ]


def _section(measured: Measured, name: str) -> Samples:
    return measured.get(name, Samples())


def _at_memory_speed(measured: Measured) -> Iterator[Goal]:
    zram = _section(measured, sections.ZRAM)
    for size_bytes in _SIZES[1:]:
        what = f"get {size_text(size_bytes)}, zram, checksum off"
        yield _against_best(what, zram, Cell(GET, size_bytes), 1.0, KVRING_OFF)
    for size_bytes in _SIZES[1:]:
        cell = Cell(GET, size_bytes)
        ratio = ratio_of(zram.series(cell, KVRING, RATE), allowed_rates(zram, cell))
        what = f"get {size_text(size_bytes)}, zram"
        yield Goal(what, "best peer's rate and the checksum's cost together", 0.9, ratio)
    for size_bytes, target in ((64 * KIB, 3.0), (MIB, 1.3)):
        what = f"put {size_text(size_bytes)}, zram"
        yield _against_best(what, zram, Cell(PUT, size_bytes), target, KVRING)


def _against_best(what: str, samples: Samples, cell: Cell, target: float, ours: str) -> Goal:
    """Compare with the peer of the greatest median."""
    best = samples.best(cell, PEERS, RATE)
    ratio = samples.ratio(cell, ours, best, RATE) if best else None
    return Goal(what, best or "best peer", target, ratio)


def _small_chunks(measured: Measured) -> Iterator[Goal]:
    for name, ours in ((sections.DISK, KVRING), (sections.BARE, BARE)):
        samples = _section(measured, name)
        for operation, target in ((PUT, 8.0), (GET, 4.0)):
            ratio = samples.ratio(Cell(operation, 4 * KIB), ours, RAW_BLOCK, RATE)
            where = "bare device" if name == sections.BARE else "disk"
            yield Goal(f"{operation} 4 KiB, {where}", RAW_BLOCK, target, ratio)


def _threads(measured: Measured) -> Iterator[Goal]:
    disk, zram = (
        _section(measured, name) for name in (sections.THREADS_DISK, sections.THREADS_ZRAM)
    )
    for operation in (PUT, GET):
        for size_bytes in _SIZES:
            cell = Cell(operation, size_bytes)
            what = f"{operation} {size_text(size_bytes)}, defaults"
            yield _against_fixed(f"{what}, zram", zram, cell, KVRING)
            yield _against_fixed(f"{what} but checksum off, zram", zram, cell, KVRING_OFF)
            yield _against_fixed(f"{what}, disk", disk, cell, KVRING)
            yield _against_fixed(f"CPU of {what}, disk", disk, cell, KVRING, CPU)


def _against_fixed(what: str, samples: Samples, cell: Cell, ours: str, metric: str = RATE) -> Goal:
    """Compare with the number of threads that has the greatest median rate."""
    options = {"checksum": "off"} if ours == KVRING_OFF else None
    fixed = [io_threads_name(count, options) for count in IO_THREADS]
    best = samples.best(cell, fixed, RATE)
    ratio = samples.ratio(cell, ours, best, metric) if best else None
    at_least = metric == RATE
    compared_with = best or "best fixed io_threads"
    return Goal(what, compared_with, 0.95 if at_least else 1.05, ratio, at_least)


def _registered(measured: Measured) -> Iterator[Goal]:
    for name in (sections.DISK, sections.ZRAM):
        samples = _section(measured, name)
        for operation in (PUT, GET):
            for size_bytes in REGISTERED_SIZES_BYTES:
                cell = Cell(operation, size_bytes)
                what = f"CPU of {operation} {size_text(size_bytes)}, {name}, registered memory"
                least = samples.best(cell, (FS_NATIVE, FS_NATIVE_32), CPU, most=False)
                for other, target in ((FIO, 1.5), (least or FS_NATIVE, 0.25)):
                    ratio = samples.ratio(cell, REGISTERED, other, CPU)
                    yield Goal(what, other, target, ratio, at_least=False)


def _mixed(measured: Measured) -> Iterator[Goal]:
    cell = Cell(MIXED, MIB)
    disk, zram = (_section(measured, name) for name in (sections.MIXED_DISK, sections.MIXED_ZRAM))
    p99 = "p99 of GET batches among SETs"
    for what, samples, other, metric, target in (
        (f"{p99}, disk", disk, KVRING_ALONE, P99, 1.25),
        (f"{p99}, disk", disk, FS_NATIVE, P99, 0.3),
        (f"{p99}, zram", zram, FS_NATIVE, P99, 0.33),
        ("SETs among GET batches, MB/s, zram", zram, FS_NATIVE, RATE, 0.95),
    ):
        ratio = samples.ratio(cell, KVRING, other, metric)
        yield Goal(what, other, target, ratio, at_least=metric == RATE)


def _opening(measured: Measured) -> Iterator[Goal]:
    samples = _section(measured, sections.OPENING)
    for key_count, target_s in ((1_000_000, 0.35), (10_000_000, 3.0)):
        case = case_of(key_count)
        spread = samples.spread(Cell(OPEN, 0, case), KVRING, OPEN_TIME)
        yield Goal(f"open of {case}", "", target_s, spread, at_least=False, unit="s")
    case = case_of(10_000_000)
    spread = samples.spread(Cell(OPEN, 0, case), KVRING, KEY_MEMORY)
    yield Goal(f"memory for a key, of {case}", "", 120, spread, at_least=False, unit="bytes")


def _growth(measured: Measured) -> Iterator[Goal]:
    samples = _section(measured, sections.GROWTH)
    cell = Cell(growth.GROWTH, MIB, growth.POOLED)
    ratio = samples.ratio(cell, growth.GROWING, growth.SETTLED, growth.P999)
    what = "p99.9 of loads while the store grows by ten data files"
    yield Goal(what, growth.SETTLED, 1.3, ratio, at_least=False)


def _through_lmcache(measured: Measured) -> Iterator[Goal]:
    samples = _section(measured, sections.BENCH_L2)
    wanted = [(LOOKUP, size_bytes, KEY_RATE, 3.0) for size_bytes in (2 * MIB, 64 * KIB)]
    wanted += [(operation, 2 * MIB, RATE, 1.0) for operation in (STORE, LOAD)]
    for operation, size_bytes, metric, target in wanted:
        cell = Cell(operation, size_bytes, "aligned")
        best = samples.best(cell, (FS_NATIVE, RAW_BLOCK), metric)
        ratio = samples.ratio(cell, PLUGIN, best, metric) if best else None
        what = f"{operation} {size_text(size_bytes)}, lmcache bench l2, plugin"
        yield Goal(what, best or "best peer", target, ratio)
    for name, where in ((sections.SERVER_DISK, "disk"), (sections.SERVER_ZRAM, "zram")):
        samples = _section(measured, name)
        ratio = samples.ratio(server.CELL, PLUGIN, FS_NATIVE, RATE)
        yield Goal(f"L2 to L1 of a request, lmcache server, {where}", FS_NATIVE, 1.0, ratio)
