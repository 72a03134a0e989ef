"""What the tests with vLLM do in processes of their own (processes.py)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.python.engines.processes import tell
from tests.python.engines.vllm_engine import kvring_tier, make_config, number_of
from tests.python.engines.vllm_lone_tier import LoneTier
from tests.support.vllm_config import key_of

# Of the random jobs.
UNIVERSE = 1200
ROWS = 32
ROW_BYTES = 32 << 10
MOST_IN_FLIGHT = 6
MOST_KEYS = 5


@dataclass
class Job:
    """A job that is under way."""

    is_load: bool
    numbers: list[int]
    rows: list[int]
    request: str
    must_be: set[int]


class RandomJobs:
    """Stores, loads, lookups and touches, several at a time, each compared with what must be."""

    def __init__(
        self, channel: Any, tier: LoneTier, seed: str, acknowledged: Sequence[int]
    ) -> None:
        """Begin with what earlier processes were told is stored."""
        self.channel = channel
        self.tier = tier
        self.choose = random.Random(seed)
        self.stored = set(acknowledged)
        self.free_rows = list(range(tier.rows))
        self.jobs: dict[int, Job] = {}

    def verify(self) -> None:
        """Load everything that must be there."""
        numbers = sorted(self.stored)
        for first in range(0, len(numbers), self.tier.rows):
            batch = numbers[first : first + self.tier.rows]
            assert all(self.tier.lookup(batch)), "what was stored is not found"
            job = self.tier.submit_load(batch, range(len(batch)))
            assert self.tier.finished()[job].success, "what was stored is not loaded"
            assert all(self.tier.holds(batch, range(len(batch)))), "wrong bytes"

    def work(self, count: int) -> None:
        """Do so many jobs, and wait for all."""
        for number in range(count):
            while len(self.jobs) == MOST_IN_FLIGHT:
                self.take()
            self.begin(f"job-{number}")
            self.take()
        while self.jobs:
            self.take()
        self.tier.tier.drain_jobs()
        assert not self.tier.taken(), "a job finished twice"

    def begin(self, request: str) -> None:
        """Begin a random job, after a random lookup or touch."""
        is_load = self.choose.random() < 0.5
        of_all = not self.stored or self.choose.random() < 0.3
        among = range(UNIVERSE) if of_all or not is_load else sorted(self.stored)
        numbers = self.choose.sample(among, min(self.choose.randint(1, MOST_KEYS), len(among)))
        must_be = self.stored.intersection(numbers)
        if self.choose.random() < 0.5:
            self.tier.touch(numbers)
        else:
            found = self.tier.lookup(numbers, request)
            hits = {number for number, hit in zip(numbers, found, strict=True) if hit}
            assert hits >= must_be, "what was stored is not found"
        self.choose.shuffle(self.free_rows)
        rows = [self.free_rows.pop() for _ in numbers]
        submit = self.tier.submit_load if is_load else self.tier.submit_store
        self.jobs[submit(numbers, rows, request)] = Job(is_load, numbers, rows, request, must_be)

    def take(self) -> None:
        """Take what has finished, and tell of it before anything else is begun."""
        for number, result in self.tier.taken().items():
            job = self.jobs.pop(number)
            self.free_rows += job.rows
            if job.is_load:
                self.compare(job, result)
                tell(self.channel, ("loaded", []))
            else:
                assert result.success, "a store failed"
                self.stored.update(job.numbers)
                tell(self.channel, ("stored", job.numbers))
            self.tier.finish_request(job.request)

    def compare(self, job: Job, result: Any) -> None:
        """Compare what was loaded."""
        keys = map(key_of, job.numbers) if result.success else result.successful_keys or ()
        loaded = {number_of(key) for key in keys}
        assert loaded >= job.must_be, "what was stored is not loaded"
        right = zip(job.numbers, self.tier.holds(job.numbers, job.rows), strict=True)
        assert all(is_right for number, is_right in right if number in loaded), "wrong bytes"


def live(
    channel: Any, path: str, capacity: int, seed: str, acknowledged: Sequence[int], count: int
) -> None:
    """Look whether all is there that was stored, then do so many random jobs."""
    tiers = [kvring_tier(path, capacity)]
    with LoneTier(make_config(tiers, rows=ROWS, row_bytes=ROW_BYTES)) as tier:
        jobs = RandomJobs(channel, tier, seed, acknowledged)
        jobs.verify()
        tell(channel, ("verified", []))
        jobs.work(count)
