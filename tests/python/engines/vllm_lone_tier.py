"""A tier of vLLM's without a manager above it: who submits jobs to it, one by one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from typing_extensions import Self
from vllm.v1.kv_offload.base import LookupResult, ReqContext
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from tests.python.conftest import make_memory
from tests.python.engines.vllm_engine import content_of, number_of
from tests.support.vllm_config import key_of


class LoneTier:
    """A tier with memory of its own instead of a primary tier's, and who submits jobs to it."""

    def __init__(self, config: Any) -> None:
        """Make the tier as vLLM does."""
        self.spec = TieringOffloadingSpec(config)
        self.rows, self.row_bytes = self.spec.num_chunks, self.spec.kv_bytes_per_chunk
        # With a row before it and one behind it, which are no business of the tier's.
        self.whole = make_memory((1 + self.rows + 1) * self.row_bytes)
        self.memory = self.whole[self.row_bytes : -self.row_bytes]
        view = self.memory.cast("B", (self.rows, self.row_bytes))
        (tier,) = config.extra_config["secondary_tiers"]
        self.tier = SecondaryTierFactory.create_secondary_tier(tier, view, self.spec)
        self._jobs = 0
        self._requests: dict[str, Any] = {}

    @property
    def store(self) -> Any:
        """The tier's store."""
        return self.tier._store.connector

    def request(self, name: str = "request") -> Any:
        """Return a request, which begins with its first use."""
        if name not in self._requests:
            self._requests[name] = ReqContext(req_id=name)
            self.tier.on_new_request(self._requests[name])
        return self._requests[name]

    def finish_request(self, name: str = "request") -> None:
        """End a request."""
        self.tier.on_request_finished(self._requests.pop(name))

    def row(self, row: int) -> memoryview:
        """Return a row of the memory."""
        return self.memory[row * self.row_bytes : (row + 1) * self.row_bytes]

    def fill(self, numbers: Sequence[int], rows: Sequence[int]) -> None:
        """Write chunks into rows."""
        for number, row in zip(numbers, rows, strict=True):
            self.row(row)[:] = content_of(number, self.row_bytes)

    def clear(self, rows: Iterable[int]) -> None:
        """Write zeros into rows."""
        for row in rows:
            self.row(row)[:] = bytes(self.row_bytes)

    def holds(self, numbers: Sequence[int], rows: Sequence[int]) -> list[bool]:
        """Say of each row whether it holds its chunk."""
        pairs = zip(numbers, rows, strict=True)
        return [self.row(row) == content_of(number, self.row_bytes) for number, row in pairs]

    def submit(
        self, numbers: Sequence[int], rows: Sequence[int], request: str, *, is_load: bool
    ) -> int:
        """Submit a job; return its number."""
        self._jobs += 1
        job = TransferJob(
            job_id=self._jobs,
            keys=[key_of(number) for number in numbers],
            chunk_ids=np.array(rows, dtype=np.int64),
            is_promotion=is_load,
            req_context=self.request(request),
        )
        (self.tier.submit_load if is_load else self.tier.submit_store)(job)
        return self._jobs

    def submit_store(
        self, numbers: Sequence[int], rows: Sequence[int], request: str = "request"
    ) -> int:
        """Fill rows, and submit that they are stored."""
        self.fill(numbers, rows)
        return self.submit(numbers, rows, request, is_load=False)

    def submit_load(
        self, numbers: Sequence[int], rows: Sequence[int], request: str = "request"
    ) -> int:
        """Clear rows, and submit that they are loaded."""
        self.clear(rows)
        return self.submit(numbers, rows, request, is_load=True)

    def finished(self) -> dict[int, JobResult]:
        """Wait for all jobs, and return what was not taken before."""
        self.tier.drain_jobs()
        return self.taken()

    def taken(self) -> dict[int, JobResult]:
        """Return what has finished, without waiting."""
        results = list(self.tier.get_finished_jobs())
        by_job = {result.job_id: result for result in results}
        assert len(by_job) == len(results), "a job finished twice"
        return by_job

    def store_all(self, numbers: Sequence[int]) -> None:
        """Store chunks, of which there must be room for all."""
        for first in range(0, len(numbers), self.rows):
            batch = numbers[first : first + self.rows]
            job = self.submit_store(batch, range(len(batch)))
            assert self.finished()[job].success

    def lookup(self, numbers: Iterable[int], request: str = "request") -> list[bool]:
        """Say of each chunk whether it is a hit; anything else must be a miss."""
        context = self.request(request)
        answers = [self.tier.lookup(key_of(number), context) for number in numbers]
        assert set(answers) <= {LookupResult.HIT, LookupResult.MISS}
        return [answer is LookupResult.HIT for answer in answers]

    def touch(self, numbers: Iterable[int]) -> None:
        """Count a use of chunks."""
        self.tier.touch([key_of(number) for number in numbers], self.request())

    def close(self) -> None:
        """Shut the tier down."""
        self.tier.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


MakeTier = Callable[..., LoneTier]


def loaded_of(result: Any) -> list[int]:
    """Return which chunks of a failed load are there nevertheless."""
    assert not result.success
    return [number_of(key) for key in result.successful_keys or ()]
