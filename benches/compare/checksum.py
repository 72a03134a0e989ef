"""What the checksum costs, and what a peer could reach with it. Pure: it reads samples only."""

from __future__ import annotations

from benches.compare.memory import MEMORY_READ, ONE_CORE, PROCESSORS
from benches.compare.peers import BARE, BARE_OFF, KVRING, KVRING_OFF, PEERS
from benches.compare.samples import CPU, RATE, Cell, Samples

# With the checksum, and without.
PAIRS = ((KVRING, KVRING_OFF), (BARE, BARE_OFF))

SHARE = (
    "CPU time of the checksum: that of kvring with it minus that without, round by round. Each "
    "byte is read for it once: that takes no less time than one core takes to read memory, but "
    "where the byte is still in the cache."
)
FORMULA = (
    "Allowed together: 1 / (1 / rate of the best peer + CPU time of the checksum / processors), in "
    "GB/s and s/GB, round by round. At the speed of memory the peer keeps all processors busy, so "
    "the checksum comes on top, spread over all of them."
)


def costs(samples: Samples, cell: Cell, pair: tuple[str, str]) -> dict[int, float]:
    """Return the CPU seconds for a gigabyte that the checksum adds, by round."""
    with_checksum, without = (samples.series(cell, peer, CPU) for peer in pair)
    return {
        number: with_checksum[number] - without[number]
        for number in with_checksum
        if number in without
    }


def best_peer(samples: Samples, cell: Cell) -> str | None:
    """Return the peer with the greatest median rate, with its best number of workers."""
    return samples.best(cell, PEERS, RATE)


def allowed_rates(samples: Samples, cell: Cell) -> dict[int, float]:
    """Return the MB/s that the best peer's rate and the checksum's cost allow, by round."""
    peer = best_peer(samples, cell)
    memory = Cell(MEMORY_READ, cell.chunk_size_bytes)
    processors = samples.spread(memory, ONE_CORE, PROCESSORS)
    if peer is None or processors is None:
        return {}
    rates = samples.series(cell, peer, RATE)
    return {
        number: 1e3 / (1e3 / rates[number] + max(cost, 0.0) / processors.median)
        for number, cost in costs(samples, cell, PAIRS[0]).items()
        if rates.get(number, 0.0) > 0
    }
