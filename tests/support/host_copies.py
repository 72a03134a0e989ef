"""vLLM's tiers where the KV cache itself is in host memory: its CPU backend has no worker for them.

A user's `spec_name` and `spec_module_path` name this class. Manager, primary tier, scheduler and
connector are vLLM's; only the copies between KV cache and primary tier are made here.
"""

from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopyWorker(OffloadingWorker):
    """Copies at once, in the thread that runs the model."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        """Own the region from here on."""
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._refs = kv_caches.group_data_refs
        self._page_bytes = [cache.page_size_bytes for cache in kv_caches.tensors]
        self._blocks = [
            cache.tensor.view(torch.int8).view((-1, cache.page_size_bytes)).numpy()
            for cache in kv_caches.tensors
        ]
        # The views of a region lie in the order in which they are made.
        self._rows = [
            region.create_next_worker_view(page_bytes * blocks_per_chunk).numpy()
            for page_bytes in self._page_bytes
        ]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks into rows."""
        return self._copy(job_id, src_spec, dst_spec, is_store=True)

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        """Copy rows into blocks."""
        return self._copy(job_id, dst_spec, src_spec, is_store=False)

    def _copy(self, job_id: int, blocks_spec: Any, rows_spec: Any, is_store: bool) -> bool:
        started_s = perf_counter()
        copied_bytes = 0
        blocks, rows = iter(blocks_spec.block_ids), iter(rows_spec.block_ids)
        groups = zip(self._refs, blocks_spec.group_sizes, blocks_spec.block_indices, strict=True)
        for refs, count, first in groups:
            # The first block may lie in the middle of its chunk.
            places = np.arange(count) + first % self._blocks_per_chunk
            chunks = places // self._blocks_per_chunk
            some_blocks = np.fromiter(islice(blocks, count), np.int64, count)
            some_rows = np.array(list(islice(rows, int(chunks.max(initial=-1)) + 1)), np.int64)
            for ref in refs:
                page_bytes = self._page_bytes[ref.tensor_idx]
                in_row = places % self._blocks_per_chunk * page_bytes
                for block, row, start in zip(some_blocks, some_rows[chunks], in_row, strict=True):
                    one = self._blocks[ref.tensor_idx][block, : ref.page_size_bytes]
                    other = self._rows[ref.tensor_idx][row, start : start + ref.page_size_bytes]
                    np.copyto(*((other, one) if is_store else (one, other)))
                copied_bytes += count * ref.page_size_bytes
        self._finished.append(
            TransferResult(
                job_id=job_id,
                success=True,
                transfer_size=copied_bytes,
                transfer_time=perf_counter() - started_s,
            )
        )
        return True

    def get_finished(self) -> list[TransferResult]:
        """Take what has been copied."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is left to wait for."""

    def shutdown(self) -> None:
        """Let go of all memory."""
        self._blocks.clear()
        self._rows.clear()
        self._region.cleanup()


class HostTieringSpec(TieringOffloadingSpec):
    """Without the refusal of every platform that is no GPU."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """Make the worker once."""
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostCopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker


def register() -> None:
    """Have every offloading of vLLM do so: an entry point of the group `vllm.general_plugins`."""
    TieringOffloadingSpec.get_worker = HostTieringSpec.get_worker
