"""Ranks of an MLA model that load the same pages, below SGLang.

Either all read the one store of the first rank, or each has a store of its own. In SGLang only the
first rank stores, so stores of their own would have to be filled in another way.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import shutil
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benches.compare.engines.measuring import emit
from benches.compare.engines.sglang_backends import keys_of, rows_of
from benches.compare.harness.samples import in_turn
from tests.support.sglang_pools import kvring_options, make_backend, mla_pool, storage_config

_LAYERS = 61
_PAGE_BYTES = _LAYERS * 64 * 576 * 2
_BATCH_PAGES = 128
_HUGE_PAGE_BYTES = 2 << 20

SHARED, OWN = "one store for all ranks", "a store for each rank"


def main() -> None:
    """Measure, and print a sample a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--control-group", type=Path, help="of which all ranks are to be members")
    arguments = parser.parse_args()
    if arguments.control_group is not None:
        members = arguments.control_group / "cgroup.procs"
        members.write_text(str(os.getpid()), encoding="ascii")
    for ranks in (1, 2, arguments.ranks):
        _measure(arguments.directory, arguments.rounds, arguments.pages, ranks)


def _measure(directory: Path, rounds: int, pages: int, ranks: int) -> None:
    context = multiprocessing.get_context("fork")
    workers: dict[str, list[Connection]] = {}
    for name in (SHARED, OWN):
        workers[name] = []
        for rank in range(ranks):
            pipe, own = context.Pipe()
            arguments = (own, directory, name, rank, ranks, pages)
            context.Process(target=_rank, args=arguments, daemon=True).start()
            own.close()
            workers[name].append(pipe)
        # The first one opens the store, the others find it.
        for pipe in workers[name]:
            _ask(pipe, "start")
        for pipe in workers[name] if name == OWN else workers[name][:1]:
            _ask(pipe, "store")
    for number, name in in_turn(list(workers), rounds):
        started_s = time.perf_counter()
        for pipe in workers[name]:
            pipe.send("load")
        cpu_s = sum(pipe.recv() for pipe in workers[name])
        elapsed_s = time.perf_counter() - started_s
        moved_gb = ranks * pages * _PAGE_BYTES / 1e9
        values = {
            "rate_mb_per_s": moved_gb * 1000 / elapsed_s,
            "cpu_s_per_gb": cpu_s / moved_gb,
        }
        if number >= 0:
            emit(f"load, {ranks} ranks", _PAGE_BYTES, name, number, values)
    for pipes in workers.values():
        for pipe in pipes:
            _ask(pipe, "end")
    for store in directory.iterdir():
        shutil.rmtree(store)


def _ask(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


def _rank(pipe: Connection, directory: Path, name: str, rank: int, ranks: int, pages: int) -> None:
    torch.set_num_threads(1)
    pool = mla_pool(pages, _LAYERS)
    _put_into_huge_pages(pool.kv_buffer)
    pool.kv_buffer.view(torch.int16).random_(generator=torch.Generator().manual_seed(rank))
    backend: Any = None
    while True:
        what = pipe.recv()
        cpu_s = time.process_time()
        if what == "start":
            place = directory / f"{ranks}-{'shared' if name == SHARED else f'own-{rank}'}"
            options = kvring_options(place, 2 * pages * _PAGE_BYTES)
            config = storage_config(options)
            if name == SHARED:
                config = storage_config(options, "mla", tp_rank=rank, tp_size=ranks)
            backend = make_backend("dynamic", config, pool)
        elif what == "store":
            _each(backend.batch_set_v1, pages)
        elif what == "load":
            _each(backend.batch_get_v1, pages)
        else:
            backend.close()
        pipe.send(time.process_time() - cpu_s)
        if what == "end":
            return


def _put_into_huge_pages(memory: torch.Tensor) -> None:
    """Give all ranks the same memory: a drive moves pages that lie here and there half as fast."""
    start = -(-memory.data_ptr() // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    end = (memory.data_ptr() + memory.nbytes) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    libc = ctypes.CDLL(None, use_errno=True)
    # They are taken when something is written there.
    length_bytes = ctypes.c_size_t(end - start)
    if libc.madvise(ctypes.c_void_p(start), length_bytes, mmap.MADV_HUGEPAGE) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _each(call: Any, pages: int) -> None:
    for start in range(0, pages, _BATCH_PAGES):
        count = min(_BATCH_PAGES, pages - start)
        if not all(call(keys_of(start, count), rows_of(start, count))):
            raise RuntimeError("pages are not there")


if __name__ == "__main__":
    main()
