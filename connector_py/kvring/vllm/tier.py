"""The tier between vLLM's TieringOffloadingManager and a kvring store."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    ConfigInfoMapping,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import (
    JobResult,
    ParentManager,
    SecondaryTierManager,
    TransferJob,
)

from kvring._native import (
    ClosedError,
    KvRingError,
    SubmitError,
    __version__,
    engine_namespace,
    part_key,
    rank_prefix,
)
from kvring.engine_store import EngineStore
from kvring.vllm.metrics import KvringTierInfo, TierMetrics, metric_definitions
from kvring.vllm.options import (
    WHERE,
    layout_of,
    locality_of,
    options_of_replica,
    promote_of,
    set_queue_bytes_of,
)
from kvring.vllm.promotion import WantedChunks
from kvring.vllm.rows import Rows

__all__ = ["KvringTier"]

# Keys that are told, and whose use is counted, in a step, so that none takes long.
_MOST_EVENTS: Final = 4096
_MOST_USES: Final = 1024

# Keys whose use is still to be counted; past it the oldest are left out.
_MOST_WAITING: Final = 1 << 20

# Rows that a worker left empty, after which nothing is stored: it is no accident of one of them.
_MOST_UNWRITTEN: Final = 10


@dataclass
class _Request:
    """What a request has done here so far."""

    # What it could not load is a miss for it: it computes, rather than asks again.
    missed: set[OffloadKey] = field(default_factory=set)
    # What it has stored or loaded; that has counted as a use.
    moved: set[OffloadKey] = field(default_factory=set)


class KvringTier(SecondaryTierManager):
    """A kvring store as vLLM's TieringOffloadingManager asks it (`tiering/base.py` of 0.33.0).

    Lookups are answered at once, and lease what they find. Stores and loads are jobs between the
    primary tier's memory, which is registered, and the disk.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = "LOCAL",
        promote: bool = False,
        **options: Any,
    ) -> None:
        """Open the store, and register the primary tier's memory with it.

        Args:
            offloading_spec: vLLM's.
            primary_kv_view: The primary tier's memory: a row for each chunk.
            tier_type: Its `type` in vLLM's configuration.
            backpressure_detector: vLLM's.
            locality: `LOCAL` or `REMOTE`: the place of the store in vLLM's KV events.
            promote: `true` also stores the chunks that vLLM loads from another tier.
            options: Those of `kvring.Connector`. `{dp_rank}` in a path is the number of the
                data-parallel replica.

        Raises:
            ValueError: An option cannot be used; the message names it.
            KvRingError: As `kvring.Connector` does.
            OSError: Likewise.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = locality_of(locality)
        config = offloading_spec.config
        self._row_bytes: int = self.block_size_bytes
        self._rows = Rows(offloading_spec, primary_kv_view)
        self._unwritten = 0
        # In jobs that have not finished.
        self._storing_rows = 0
        namespace = engine_namespace(
            "vllm", layout_of(offloading_spec, self._row_bytes), config.model.name
        )
        self._prefix = rank_prefix(namespace, config.parallel.rank)
        where = f"{WHERE}, the tier of type {tier_type!r}"
        may_promote = promote_of(where, promote)
        self._store = EngineStore(where, options_of_replica(where, options, config.parallel))
        self._wanted = WantedChunks(self._store.connector.epoch) if may_promote else None
        try:
            stats = self._store.connector.stats()
            longest_bytes = stats["max_chunk_bytes"]
            if self._row_bytes > longest_bytes:
                text = (
                    f"{where}: a chunk has {self._row_bytes} bytes, and the longest that fits the "
                    f"store has {longest_bytes} (an eighth of 'capacity', at least 64 MiB and at "
                    "most 2 GiB); lower 'block_size' beside secondary_tiers, or raise 'capacity'"
                )
                raise ValueError(text)
            # The other half is for what the GPU stores.
            self._most_promoted_bytes = set_queue_bytes_of(options) // 2
            self._tasks = self._store.tasks
            self._store.register(self._rows.first, self._rows.count * self._row_bytes)
            self._tells_events = bool(offloading_spec.kv_events_config.enable_kv_cache_events)
            if self._tells_events:
                self._tasks.watch_keys()
        except BaseException:
            self._store.close()
            raise
        self._has_told_stored = not self._tells_events
        self._jobs: dict[int, TransferJob] = {}
        self._refused: list[JobResult] = []
        self._requests: dict[str, _Request] = {}
        self._used: deque[OffloadKey] = deque(maxlen=_MOST_WAITING)
        self._is_touched = False
        self._info = KvringTierInfo(
            kvring_path=self._store.path,
            kvring_capacity_bytes=stats["capacity_bytes"],
            kvring_engine=stats["engine"],
            kvring_namespace=self._store.stored_as(namespace),
            kvring_version=__version__,
        )
        # Tasks that store what another tier had, and how many chunks they have stored.
        self._promotions: set[int] = set()
        self._promoted = 0
        self._metrics = TierMetrics(self._store, lambda: self._promoted)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Say whether a chunk is stored, and lease it: the load that follows finds it."""
        request = self._requests.get(req_context.req_id)
        is_stored = False
        if request is None or key not in request.missed:
            with suppress(ClosedError):
                (is_stored,) = self._tasks.exists(self._prefix, [key.hex()])
        if is_stored:
            return LookupResult.HIT
        # Without a request nobody would tell when it ends.
        if self._wanted is not None and request is not None:
            self._wanted.add(key, req_context)
        return LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store rows; those that are stored already, and unchanged, are not written again."""
        if self._wanted is not None:
            for key in job_metadata.keys:
                self._wanted.discard(key)
        self._submit(self._tasks.store, job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load into rows; loads go before stores."""
        self._submit(self._tasks.load, job_metadata)

    def serve_external_requests(self, parent: ParentManager) -> None:
        """Store chunks that another tier has brought, if `promote` is set.

        What the GPU computes comes by `submit_store()` in the same call of vLLM that makes it
        readable in the primary tier. So a wanted chunk that is readable came from another tier, or
        `backpressure` kept it from here.
        """
        if not self._wanted:
            return
        for context, keys in self._wanted.take_ready(parent, self._promotion_room()):
            task = self._submit(self._tasks.store, parent.create_store_job(keys, context))
            if task is not None:
                self._promotions.add(task)

    def _promotion_room(self) -> int:
        """Return how many chunks may be queued without harm to what the GPU stores."""
        if self.bp_detector is not None and self.bp_detector.is_under_pressure():
            return 0
        queued_bytes = self._storing_rows * self._row_bytes
        if not queued_bytes:
            # An empty queue takes a chunk that is longer than the limit.
            return max(1, self._most_promoted_bytes // self._row_bytes)
        return max(0, self._most_promoted_bytes - queued_bytes) // self._row_bytes

    def _refuse_unwritten(self, addresses: list[int]) -> None:
        """Refuse rows into which a worker has written nothing, and all rows once there were many.

        Raises:
            SubmitError: The message names the causes.
        """
        if self._unwritten < _MOST_UNWRITTEN:
            rows = [address for address in addresses if not self._rows.is_written(address)]
            self._unwritten += len(rows)
            if not rows:
                return
            number = (rows[0] - self._rows.first) // self._row_bytes
            what = f"row {number} of the primary tier has nothing but zeros of one worker"
        else:
            what = f"{self._unwritten} rows of the primary tier had nothing but zeros of one worker"
        text = (
            f"nothing is stored: {what}: the region in /dev/shm was replaced after the workers "
            "mapped it, or a rank is on another machine; restart vLLM with all its ranks on this "
            f"one (after {_MOST_UNWRITTEN} such rows the tier stores no more)"
        )
        raise SubmitError(text)

    def _submit(self, submit: Any, job: TransferJob) -> int | None:
        request = self._requests.get(job.req_context.req_id)
        if request is not None:
            request.moved.update(job.keys)
        keys = [key.hex() for key in job.keys]
        rows = np.asarray(job.chunk_ids, dtype=np.int64)
        try:
            addresses = self._rows.addresses(rows)
            if not job.is_promotion:
                self._refuse_unwritten(addresses)
            task: int = submit(self._prefix, keys, addresses, [self._row_bytes] * len(keys))
        except KvRingError as error:
            self._store.note_refusal(error)
            self._note_missed(job, [])
            self._refused.append(JobResult(job_id=job.job_id, success=False))
            return None
        self._jobs[task] = job
        if not job.is_promotion:
            self._storing_rows += len(keys)
        return task

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Take what became of jobs, each once."""
        finished, self._refused = self._refused, []
        for task, results, code, error, seconds in self._tasks.take_finished():
            job = self._jobs.pop(task)
            if not job.is_promotion:
                self._storing_rows -= len(results)
            done = [key for key, ok in zip(job.keys, results, strict=True) if ok]
            success = len(done) == len(results)
            self._store.note(code, error)
            self._note_missed(job, done)
            if task in self._promotions:
                self._promotions.remove(task)
                # A store that admission refuses succeeds as well.
                with suppress(ClosedError):
                    held = self._tasks.holds(self._prefix, [key.hex() for key in done])
                    self._promoted += sum(held)
            finished.append(
                JobResult(
                    job_id=job.job_id,
                    success=success,
                    successful_keys=(done or None) if job.is_promotion and not success else None,
                    transfer_time=seconds,
                    transfer_bytes=len(done) * self._row_bytes,
                )
            )
        return finished

    def _note_missed(self, job: TransferJob, done: list[OffloadKey]) -> None:
        # It may have ended before.
        request = self._requests.get(job.req_context.req_id)
        if request is None:
            return
        if job.is_promotion:
            request.missed.update(set(job.keys).difference(done))
        else:
            request.missed.difference_update(done)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Ask for nothing but new chunks."""
        self._requests[req_context.req_id] = _Request()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Note which chunks the request found above, in the primary tier or the GPU.

        Those that are hot there stay here as well. vLLM 0.33.0 has `touch()` for that and never
        calls it; the keys of a request are in its context.
        """
        if self._wanted is not None:
            self._wanted.end_request(req_context.req_id)
        request = self._requests.pop(req_context.req_id, None)
        if request is not None and not self._is_touched:
            keys = getattr(req_context, "_offload_key_positions", ())
            self._used.extend(key for key in keys if key not in request.moved)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Count the use of some of these chunks."""
        del context
        count = min(len(self._used), _MOST_USES)
        if count:
            self._count_uses([self._used.popleft() for _ in range(count)])

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Count a use of each chunk."""
        del req_context
        self._is_touched = True
        self._count_uses(keys)

    def _count_uses(self, keys: Collection[OffloadKey]) -> None:
        with suppress(ClosedError):
            self._tasks.touch(self._prefix, [key.hex() for key in keys])

    def take_events(self) -> Iterator[OffloadingEvent]:
        """Tell which chunks were stored and are gone, those from before the start first."""
        if not self._tells_events:
            return
        if not self._has_told_stored:
            stored, _ = self._tasks.take_stored_keys(_MOST_EVENTS)
            self._has_told_stored = len(stored) < _MOST_EVENTS
            yield from self._events("stored", stored)
            if not self._has_told_stored:
                return
        for change, keys, _ in self._tasks.take_key_events(_MOST_EVENTS):
            yield from self._events(change, keys)

    def _events(self, change: str, stored: list[str]) -> Iterator[OffloadingEvent]:
        own = part_key(self._prefix, 0, "")
        keys = [
            OffloadKey(bytes.fromhex(key.removeprefix(own)))
            for key in stored
            if key.startswith(own)
        ]
        if keys and change != "stored again":
            yield OffloadingEvent(
                keys=keys,
                medium=self.medium,
                removed=change == "gone",
                locality=self.locality,
                ownership="kvring",
                removal_expected=True,
            )

    def drain_jobs(self) -> None:
        """Wait until every job has completed; none is given up."""
        self._tasks.wait_all()

    def shutdown(self) -> None:
        """Finish or drop what is queued, and let go of the primary tier's memory. Idempotent.

        Raises:
            RuntimeError: The drive does not answer, and the kernel still holds some of that
                memory; vLLM then leaves it mapped.
        """
        self._store.close()

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """Describe what `get_stats()` tells."""
        del extra_config
        return metric_definitions()

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return figures of the store, once a second; None in between."""
        return self._metrics.take()

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of what `config_info()` tells."""
        del tier_config
        keys: tuple[str, ...] = KvringTierInfo.config_info_keys()
        return keys

    def config_info(self) -> ConfigInfoMapping:
        """Return what stays as it is while the tier runs."""
        return self._info.as_config_info()
