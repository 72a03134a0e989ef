"""The tier between vLLM's TieringOffloadingManager and a kvring store."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    ConfigInfoMapping,
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvring._native import ClosedError, KvRingError, SubmitError, __version__
from kvring.engine_store import EngineStore, digest_of, namespace_of, options_of, prefix_of
from kvring.vllm.figures import Figures, KvringTierInfo, metric_definitions

__all__ = ["KvringTier"]

_WHERE: Final = "kv_connector_extra_config, secondary_tiers"

# Keys that are told, and whose use is counted, in a step, so that none takes long.
_MOST_EVENTS: Final = 4096
_MOST_USES: Final = 1024

# Keys whose use is still to be counted; past it the oldest are left out.
_MOST_WAITING: Final = 1 << 20


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
        **options: Any,
    ) -> None:
        """Open the store, and register the primary tier's memory with it.

        Args:
            offloading_spec: vLLM's.
            primary_kv_view: The primary tier's memory: a row for each chunk.
            tier_type: Its `type` in vLLM's configuration.
            backpressure_detector: vLLM's.
            locality: What vLLM's events call the place of the store: LOCAL or REMOTE.
            options: Those of `kvring.Connector`. `{dp_rank}` in a path is the number of the
                data-parallel replica.

        Raises:
            ValueError: An option cannot be used; the message names it.
            KvRingError: As `kvring.Connector` does.
            OSError: Likewise.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = _locality_of(locality)
        config = offloading_spec.config
        self._row_bytes: int = self.block_size_bytes
        # No array of it is kept: whoever holds one keeps the memory mapped.
        self._first_row: int = np.asarray(primary_kv_view).ctypes.data
        self._rows = len(primary_kv_view)
        namespace = namespace_of(
            "vllm", _layout_of(offloading_spec, self._row_bytes), config.model.name
        )
        self._prefix = prefix_of(namespace, config.parallel.rank)
        where = f"{_WHERE}, the tier of type {tier_type!r}"
        self._store = EngineStore(where, _of_replica(where, options, config.parallel))
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
            self._tasks = self._store.tasks
            self._store.register(self._first_row, self._rows * self._row_bytes)
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
        self._path = self._store.path
        self._info = KvringTierInfo(
            kvring_path=self._path,
            kvring_capacity_bytes=stats["capacity_bytes"],
            kvring_engine=stats["engine"],
            kvring_namespace=self._store.stored_as(namespace),
            kvring_version=__version__,
        )
        self._figures = Figures(self._store)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Say whether a chunk is stored, and lease it: the load that follows finds it."""
        request = self._requests.get(req_context.req_id)
        if request is not None and key in request.missed:
            return LookupResult.MISS
        try:
            (is_stored,) = self._tasks.exists(self._prefix, [key.hex()])
        except ClosedError:
            is_stored = False
        return LookupResult.HIT if is_stored else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store rows; those that are stored already, and unchanged, are not written again."""
        self._submit(self._tasks.store, job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load into rows; loads go before stores."""
        self._submit(self._tasks.load, job_metadata)

    def _submit(self, submit: Any, job: TransferJob) -> None:
        request = self._requests.get(job.req_context.req_id)
        if request is not None:
            request.moved.update(job.keys)
        keys = [key.hex() for key in job.keys]
        rows = np.asarray(job.chunk_ids, dtype=np.int64)
        addresses = (rows * self._row_bytes + self._first_row).tolist()
        try:
            if len(rows) and not 0 <= rows.min() <= rows.max() < self._rows:
                text = f"a job names row {rows.min()} or {rows.max()} of {self._rows}"
                raise SubmitError(text)
            task = submit(self._prefix, keys, addresses, [self._row_bytes] * len(keys))
        except KvRingError as error:
            self._store.note(str(error))
            self._note_missed(job, [])
            self._refused.append(JobResult(job_id=job.job_id, success=False))
        else:
            self._jobs[task] = job

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Take what became of jobs, each once."""
        finished, self._refused = self._refused, []
        for task, results, error, seconds in self._tasks.take_finished():
            job = self._jobs.pop(task)
            done = [key for key, ok in zip(job.keys, results, strict=True) if ok]
            success = len(done) == len(results)
            self._store.note(error)
            self._note_missed(job, done)
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
            stored = self._tasks.take_stored_keys(_MOST_EVENTS)
            self._has_told_stored = len(stored) < _MOST_EVENTS
            yield from self._events("stored", stored)
            if not self._has_told_stored:
                return
        for change, keys in self._tasks.take_key_events(_MOST_EVENTS):
            yield from self._events(change, keys)

    def _events(self, change: str, stored: list[str]) -> Iterator[OffloadingEvent]:
        own = f"{self._prefix}@0@"
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
        if not self._store.close():
            text = f"{self._path}: the drive does not answer; the memory of its transfers must stay"
            raise RuntimeError(text)

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """Describe what `get_stats()` tells."""
        del extra_config
        return metric_definitions()

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return figures of the store, once a second; None in between."""
        return self._figures.take()

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of what `config_info()` tells."""
        del tier_config
        keys: tuple[str, ...] = KvringTierInfo.config_info_keys()
        return keys

    def config_info(self) -> ConfigInfoMapping:
        """Return what stays as it is while the tier runs."""
        return self._info.as_config_info()


def _layout_of(offloading_spec: Any, row_bytes: int) -> str:
    """Return a digest of what decides how the bytes of a row lie.

    It begins with the one by which vLLM's own file tier names its directories. That one has no
    layout of the KV cache, no length of a row, and often no parallel layout, although vLLM puts the
    parts of its workers one after the other.
    """
    config = offloading_spec.config
    mapper = FileMapper.from_offloading_spec(
        root_dir="",
        offloading_spec=offloading_spec,
        blocks_per_file=offloading_spec.blocks_per_chunk,
        parallel_agnostic=True,
    )
    parallel = config.parallel
    ranks = [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    own = {
        "row_bytes": row_bytes,
        "kv_cache_layout": config.kv_cache_layout,
        # In these vLLM's bytes are the same with any ranks, or it tells them apart by itself.
        "ranks": None if config.canonical_layout or config.replicated_layout else ranks,
    }
    return f"{mapper.base_path.rpartition('_')[2]}-{digest_of(own)}"


def _locality_of(name: str | None) -> Locality | None:
    try:
        return None if name is None else Locality(name)
    except ValueError as error:
        text = (
            f"{_WHERE}: Locality: 'locality' = {name!r} is not valid; it takes 'LOCAL' or 'REMOTE'"
        )
        raise ValueError(text) from error


def _of_replica(where: str, options: dict[str, Any], parallel: Any) -> dict[str, Any]:
    """Return the options of a data-parallel replica: each is a process with its own store."""
    paths = options.get("path")
    # What is no path the store refuses.
    named = paths if isinstance(paths, list) else [paths]
    shared = [path for path in named if isinstance(path, str) and "{dp_rank}" not in path]
    replica = parallel.data_parallel_index
    # Of a dense model each replica is told that it is the only one, and keeps its number.
    if shared and (parallel.data_parallel_size > 1 or replica > 0):
        text = (
            f"{where}: path = {shared[0]!r} would be shared by data-parallel replicas (this one is "
            f"number {replica}), and a store has one owner; write {{dp_rank}} where their paths "
            f"are to differ, such as {shared[0].rstrip('/')}-{{dp_rank}}"
        )
        raise ValueError(text)
    return options_of(options, "dp_rank", parallel.data_parallel_index)
