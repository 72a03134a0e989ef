"""What is needed of an engine around vLLM's real tiers: configurations, and who calls the tiers."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from typing_extensions import Self
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S, KIB, make_memory

ROWS = 16
ROW_BYTES = 64 * KIB
MODEL = "org/tiny"

# Keys from here on only make others leave the primary tier.
_FIRST_FILLER = 1 << 40


def kvring_tier(path: Path | str, capacity: object = CAPACITY_BYTES, **options: Any) -> Any:
    """Return what a user writes into secondary_tiers."""
    named = {"type": "KvringTier", "module_path": "kvring.vllm"}
    return {**named, "path": str(path), "capacity": capacity, **options}


def make_config(
    tiers: Sequence[Any],
    *,
    rows: int = ROWS,
    row_bytes: int = ROW_BYTES,
    model: str = MODEL,
    dtype: str = "bfloat16",
    tokens_per_block: int = 16,
    blocks_per_chunk: int = 1,
    layers: Sequence[str] = ("layer.0", "layer.1"),
    tp_size: int = 1,
    dp_size: int = 1,
    dp_index: int = 0,
    events: bool = False,
    kv_cache_layout: str = "LBHNC",
    is_portable: bool = False,
    engine_id: str | None = None,
    **extra: Any,
) -> Any:
    """Return what vLLM makes of the options of a user.

    A row, which is a chunk, has `row_bytes` whatever the sizes, and the primary tier has `rows`.
    """
    worker_bytes, left = divmod(row_bytes, tp_size * blocks_per_chunk)
    assert left == 0
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block, tuple(layers), 0),),
        worker_kv_bytes_per_block=worker_bytes,
        enable_kv_cache_events=events,
        extra_config={
            "cpu_bytes_to_use": rows * row_bytes,
            "secondary_tiers": list(tiers),
            **extra,
        },
        engine_id=engine_id or f"kvring-{uuid.uuid4().hex}",
        model=OffloadingModelConfig(name=model, dtype=dtype, max_model_len=4096),
        cache=OffloadingCacheConfig(tokens_per_block, blocks_per_chunk),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=tp_size,
            tp_size=tp_size,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=dp_index,
            data_parallel_size=dp_size,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=is_portable,
        ),
        kv_cache_layout=kv_cache_layout,
    )


def shared_memory(engine_id: str) -> Path:
    """Return where the memory of a primary tier is."""
    return Path(f"/dev/shm/vllm_offload_{engine_id}.mmap")


def key_of(number: int) -> OffloadKey:
    """Return the key of a chunk: a hash of 32 bytes, in the first group of layers."""
    return make_offload_key(number.to_bytes(32, "big"), 0)


def number_of(key: OffloadKey) -> int:
    """Return what `key_of` got."""
    return int.from_bytes(key[:32], "big")


def content_of(number: int, length_bytes: int = ROW_BYTES) -> bytes:
    """Return a chunk's content: the same in every process, and other for each number."""
    content: bytes = np.random.Generator(np.random.PCG64(number)).bytes(length_bytes)
    return content


class Engine:
    """Scheduler and worker around a TieringOffloadingManager: a primary tier, and others below it.

    Chunks have numbers, from which their keys and contents follow.
    """

    def __init__(self, config: Any) -> None:
        """Make the manager as vLLM does."""
        self.engine_id: str = config.engine_id
        self.spec = TieringOffloadingSpec(config)
        self.manager = self.spec.get_manager()
        view = self.manager.primary_tier.get_kv_memoryview()
        self.rows, self.row_bytes = view.shape
        self._memory = view.cast("B")
        self._requests = 0
        self._filler = _FIRST_FILLER

    @property
    def tier(self) -> Any:
        """The first tier below the primary one."""
        return self.manager.secondary_tiers[0]

    @property
    def store(self) -> Any:
        """The store of the first tier, which is kvring's."""
        return self.tier._store.connector

    @contextmanager
    def request(self, **context: Any) -> Iterator[Any]:
        """Have a request, from its first step to its end."""
        self._requests += 1
        request = ReqContext(req_id=f"request-{self._requests}", **context)
        with self.manager.lock:
            self.manager.on_new_request(request)
        yield request
        with self.manager.lock:
            self.manager.on_request_finished(request)

    def end_step(self) -> bool:
        """End a step of the scheduler, and tell whether there is work left."""
        with self.manager.lock:
            self.manager.on_schedule_end(ScheduleEndContext([], []))
            is_left: bool = self.manager.has_pending_work()
            return is_left

    def settle(self) -> None:
        """Take steps until nothing is under way."""
        deadline_s = time.monotonic() + HANG_DEADLINE_S
        while self.end_step():
            assert time.monotonic() < deadline_s, "jobs do not finish"
            time.sleep(0.001)

    def offer(self, request: Any, numbers: Iterable[int]) -> PrepareStoreOutput:
        """Put chunks into the primary tier, which gives them to the others; wait for nothing."""
        with self.manager.lock:
            prepared = self.manager.prepare_store([key_of(number) for number in numbers], request)
        assert prepared is not None, "the primary tier is full"
        for key, row in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self._row(row)[:] = content_of(number_of(key), self.row_bytes)
        with self.manager.lock:
            self.manager.complete_store(prepared.keys_to_store, request, True)
        return prepared

    def put(self, numbers: Iterable[int]) -> None:
        """Put chunks, a few at a time, into all tiers."""
        numbers = list(numbers)
        step = max(1, self.rows // 2)
        for first in range(0, len(numbers), step):
            with self.request() as request:
                self.offer(request, numbers[first : first + step])
                self.settle()

    def evict(self) -> None:
        """Fill the primary tier with other chunks."""
        self.put(range(self._filler, self._filler + self.rows))
        self._filler += self.rows

    def lookup(self, request: Any, numbers: Sequence[int]) -> list[list[Any]]:
        """Ask in step after step, until each chunk is there or missing; return all answers."""
        answers: list[list[Any]] = []
        deadline_s = time.monotonic() + HANG_DEADLINE_S
        while True:
            with self.manager.lock:
                found = [self.manager.lookup(key_of(number), request) for number in numbers]
            answers.append(found)
            if set(found) <= {LookupResult.HIT, LookupResult.MISS}:
                return answers
            assert time.monotonic() < deadline_s, f"lookups do not end: {answers[-3:]}"
            self.end_step()
            time.sleep(0.001)

    def load(self, request: Any, numbers: Sequence[int]) -> list[bytes]:
        """Return what the primary tier has for chunks that were found."""
        keys = [key_of(number) for number in numbers]
        with self.manager.lock:
            assert all(self.manager.lookup(key, request) is LookupResult.HIT for key in keys)
            spec = self.manager.prepare_load(keys, request)
        rows = [bytes(self._row(row)) for row in spec.chunk_ids]
        with self.manager.lock:
            self.manager.complete_load(keys, request)
        return rows

    def found(self, numbers: Iterable[int]) -> list[bool]:
        """Say of each chunk whether some tier has it, and load those; all bytes must be right."""
        answers: list[bool] = []
        numbers = list(numbers)
        step = max(1, self.rows // 2)
        for first in range(0, len(numbers), step):
            batch = numbers[first : first + step]
            with self.request() as request:
                last = self.lookup(request, batch)[-1]
                answers += [answer is LookupResult.HIT for answer in last]
                hits = [number for number, hit in zip(batch, answers[first:], strict=True) if hit]
                for number, content in zip(hits, self.load(request, hits), strict=True):
                    assert content == content_of(number, self.row_bytes), "wrong bytes"
        return answers

    def events(self) -> list[OffloadingEvent]:
        """Take the events of the tiers below the primary one."""
        return [event for tier in self.manager.secondary_tiers for event in tier.take_events()]

    def shutdown(self) -> None:
        """Shut down as vLLM does."""
        # Whoever holds a buffer of it keeps the primary tier's memory mapped.
        self._memory.release()
        self.manager.shutdown()

    def _row(self, row: Any) -> memoryview:
        first = int(row) * self.row_bytes
        view: memoryview = self._memory[first : first + self.row_bytes]
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.shutdown()
        finally:
            with suppress(FileNotFoundError):
                shared_memory(self.engine_id).unlink()


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

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
