"""An engine around vLLM's real tiers: who calls their manager, and what there is to be told."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import Self
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S, KIB, MIB
from tests.support import vllm_config
from tests.support.vllm_config import key_of

ROWS = 16
ROW_BYTES = 64 * KIB

# A few chunks, and a capacity that is soon full.
FEW = range(4)
SMALL_BYTES = 16 * MIB

# Keys from here on only make others leave the primary tier.
_FIRST_FILLER = 1 << 40


def kvring_tier(path: Path | str, capacity: object = CAPACITY_BYTES, **options: Any) -> Any:
    """Return what a user writes into secondary_tiers."""
    return vllm_config.kvring_tier(path, capacity, **options)


def file_tier(path: Path) -> Any:
    """Return what a user writes there for vLLM's own file tier."""
    return vllm_config.file_tier(path, n_read_threads=2, n_write_threads=2)


def make_config(
    tiers: Sequence[Any], *, rows: int = ROWS, row_bytes: int = ROW_BYTES, **options: Any
) -> Any:
    """Return what vLLM makes of the options of a user, for a small primary tier."""
    return vllm_config.make_config(tiers, rows=rows, row_bytes=row_bytes, **options)


def shared_memory(engine_id: str) -> Path:
    """Return where the memory of a primary tier is."""
    return Path(f"/dev/shm/vllm_offload_{engine_id}.mmap")


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

    def __exit__(self, *_: object) -> None:
        try:
            self.shutdown()
        finally:
            with suppress(FileNotFoundError):
                shared_memory(self.engine_id).unlink()


def tiny_model(path: Path, **configuration: Any) -> str:
    """Write what vLLM's configuration reads of a model, and a file for its weights."""
    path.mkdir(exist_ok=True)
    llama = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(llama | configuration))
    (path / "model.safetensors").write_bytes(b"weights")
    return str(path)


def whole_config(
    tiers: Any, model: str, cache: Any = None, more: Any = None, **fields: Any
) -> VllmConfig:
    """Return vLLM's own configuration of an engine with tiers; the fields are its model's."""
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": ROWS * ROW_BYTES,
        "secondary_tiers": list(tiers),
    }
    return VllmConfig(
        model_config=ModelConfig(model=model, skip_tokenizer_init=True, **fields),
        cache_config=CacheConfig(block_size=16, **(cache or {})),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
        ),
        **(more or {}),
    )


def namespace_under(config: VllmConfig) -> str:
    """Return the namespace of the tier that vLLM's own connector makes in the scheduler."""
    layers = ["layer.0", "layer.1"]
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
    page = spec.page_size_bytes
    tensor = KVCacheTensor(len(layers) * page * ROWS, layers, page * ROWS, page)
    caches = KVCacheConfig(ROWS, [tensor], [KVCacheGroupSpec(layers, spec)])
    connector = OffloadingConnector(config, KVConnectorRole.SCHEDULER, caches)
    try:
        manager: Any = connector.scheduler.manager
        namespace: str = manager.secondary_tiers[0].config_info()["kvring_namespace"]
    finally:
        connector.shutdown()
    return namespace


MakeEngine = Callable[..., Engine]


def namespace_of(engine: Engine) -> str:
    """Return the namespace of an engine: it begins as vLLM's file tier names directories."""
    mapper = FileMapper.from_offloading_spec(
        "root", engine.spec, engine.spec.blocks_per_chunk, parallel_agnostic=True
    )
    digest = Path(mapper.base_path).name.rpartition("_")[2]
    assert re.fullmatch(r"[0-9a-f]{12}", digest)
    namespace: str = engine.tier.config_info()["kvring_namespace"]
    model = re.escape(engine.spec.config.model.name)
    assert re.fullmatch(rf"((one|two)#)?vllm-{digest}-[0-9a-f]{{12}}#{model}", namespace)
    return namespace


def stored_by(events: list[Any]) -> set[int]:
    """Return the chunks that are there after events, which must be told in a row that fits."""
    there: set[int] = set()
    for event in events:
        assert event.medium is Medium.STORAGE
        assert event.ownership == "kvring"
        assert event.locality is Locality.LOCAL
        assert event.keys
        numbers = {number_of(key) for key in event.keys}
        assert len(numbers) == len(event.keys)
        # Nothing is told twice, and nothing goes that did not come.
        assert there >= numbers if event.removed else not there & numbers
        there = there - numbers if event.removed else there | numbers
    return there
