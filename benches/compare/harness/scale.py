"""How much is measured: a whole run, and a first look."""

from __future__ import annotations

from dataclasses import dataclass, replace

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

BATCHES_IN_FLIGHT = 4


@dataclass(frozen=True)
class Plan:
    """How much is moved in a round, and in which portions."""

    chunk_size_bytes: int
    chunk_count: int
    batch_keys: int

    @property
    def size_bytes(self) -> int:
        """All bytes of a round."""
        return self.chunk_size_bytes * self.chunk_count

    @property
    def depth(self) -> int:
        """How many chunks are submitted and not yet answered, at most."""
        return self.batch_keys * BATCHES_IN_FLIGHT

    def reduced(self, share: float) -> Plan:
        """Return the same with a part of the chunks, for those who would take minutes."""
        least = min(self.chunk_count, 2 * self.depth)
        return replace(self, chunk_count=max(round(self.chunk_count * share), least))


# Bursts of 64 MiB, each one batch.
BURSTS = (Plan(MIB, 64, 64), Plan(8 * MIB, 8, 8), Plan(256 * KIB, 256, 256))


@dataclass(frozen=True)
class MixedPlan:
    """The mixed run: stores without pause, and a batch of loads at a fixed interval."""

    chunk_size_bytes: int = MIB
    sets_in_flight: int = 64
    set_batch_keys: int = 4
    get_batch_keys: int = 16
    get_interval_s: float = 0.02
    get_batches: int = 200
    loadable_chunks: int = 512
    # So many stored chunks are kept. Then the oldest are deleted, as a full cache does.
    kept_chunks: int = 1024
    # Stores alone, before the first load.
    lead_s: float = 0.5


@dataclass(frozen=True)
class FailingPlan:
    """A disk that dies in the middle of a mixed load."""

    chunk_size_bytes: int = MIB
    chunk_count: int = 512
    batch_keys: int = 4
    # Of the keys of each path.
    batches_in_flight: int = 8
    window_s: float = 3.0


@dataclass(frozen=True)
class Scale:
    """All that differs between a whole run, which the defaults are, and a quick one."""

    rounds: int = 5
    burst_rounds: int = 12
    plans: tuple[Plan, ...] = (
        Plan(4 * KIB, 32768, 32),
        Plan(64 * KIB, 8192, 32),
        Plan(256 * KIB, 2048, 16),
        Plan(MIB, 768, 16),
        Plan(4 * MIB, 256, 4),
        Plan(32 * MIB, 32, 2),
    )
    mixed: MixedPlan = MixedPlan()
    failing: FailingPlan = FailingPlan()
    exists_keys: int = 32768
    exists_time_s: float = 0.5
    deletes: int = 130_000
    bursts: int = 20
    file_system_size_bytes: int = 14 * GIB
    raw_device_size_bytes: int = 3 * GIB
    second_device_size_bytes: int = 4 * GIB
    kvring_capacity_bytes: int = 3 * GIB
    every_peer: bool = True

    def with_rounds(self, rounds: int) -> Scale:
        """Return the same with so many rounds of everything."""
        return replace(self, rounds=rounds, burst_rounds=rounds)

    @property
    def arena_half_size_bytes(self) -> int:
        """Memory for the greatest plan."""
        mixed = self.mixed.loadable_chunks * self.mixed.chunk_size_bytes
        return max(mixed, *(plan.size_bytes for plan in self.plans))


FULL = Scale()

QUICK = Scale(
    rounds=2,
    burst_rounds=2,
    plans=(Plan(4 * KIB, 8192, 32), Plan(64 * KIB, 2048, 32), Plan(MIB, 256, 16)),
    mixed=MixedPlan(get_batches=60, loadable_chunks=256, kept_chunks=512),
    failing=FailingPlan(chunk_count=256, window_s=0.5),
    exists_keys=4096,
    exists_time_s=0.1,
    deletes=20_000,
    bursts=8,
    file_system_size_bytes=4 * GIB,
    raw_device_size_bytes=GIB,
    second_device_size_bytes=2 * GIB,
    kvring_capacity_bytes=GIB + GIB // 4,
    every_peer=False,
)
