"""kvring below SGLang, beside SGLang's own backend `file`.

Both are called as SGLang's controller calls them: `file` page by page through copies, kvring by
`interface_v1`, 128 pages at a time.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benches.compare.engines.measuring import (
    among_stores,
    drop_page_cache,
    emit,
    ensure_room,
    figures,
)
from benches.compare.harness.samples import in_turn
from tests.support.sglang_pools import (
    PAGE_TOKENS,
    kvring_options,
    make_backend,
    mha_pool,
    storage_config,
)

_MIB = 1 << 20
# A page of 64 tokens, K and V: 2 MiB.
_LAYERS = 8
_PAGE_BYTES = 2 * _MIB
# SGLang's STORAGE_BATCH_SIZE, and a prefetch of 1,024 tokens.
_BATCH_PAGES = 128
_LOAD_PAGES = 16

KVRING, FILE = "kvring", "SGLang's file"


@dataclass
class Backend:
    """A backend, and the calls of SGLang's controller."""

    name: str
    backend: Any
    pool: Any
    directory: Path

    def store(self, keys: list[str], rows: torch.Tensor) -> None:
        """Store pages, as HiCacheController does (cache_controller.py)."""
        if self.name == KVRING:
            stored = all(self.backend.batch_set_v1(keys, rows))
        else:
            data = [self.pool.get_data_page(row) for row in rows[::PAGE_TOKENS].tolist()]
            stored = self.backend.batch_set(keys, data)
        if not stored:
            raise RuntimeError(f"{self.name}: pages are not stored")

    def load(self, keys: list[str], rows: torch.Tensor) -> None:
        """Load pages, likewise."""
        if self.name == KVRING:
            loaded = all(self.backend.batch_get_v1(keys, rows))
        else:
            empty = [self.pool.get_dummy_flat_data_page() for _ in keys]
            pages = self.backend.batch_get(keys, empty)
            loaded = all(page is not None for page in pages)
            for row, page in zip(rows[::PAGE_TOKENS].tolist(), pages, strict=True):
                self.pool.set_from_flat_data_page(row, page)
        if not loaded:
            raise RuntimeError(f"{self.name}: pages are not loaded")

    def each(self, call: Callable[[list[str], torch.Tensor], None], first: int, pages: int) -> None:
        """Call it for some pages, a batch at a time."""
        for start in range(0, pages, _BATCH_PAGES):
            count = min(_BATCH_PAGES, pages - start)
            call(keys_of(first + start, count), rows_of(start, count))


def keys_of(first: int, count: int) -> list[str]:
    """Return the keys of some pages, one after the other."""
    return [f"{number:064x}" for number in range(first, first + count)]


def rows_of(first_page: int, pages: int) -> torch.Tensor:
    """Return the host indices of some pages, one after the other."""
    return torch.arange(first_page * PAGE_TOKENS, (first_page + pages) * PAGE_TOKENS)


def main() -> None:
    """Measure, and print a sample a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=384)
    parser.add_argument("--loads", type=int, default=100)
    arguments = parser.parse_args()
    pages = arguments.pages
    pool = mha_pool(pages, _LAYERS)
    pool.kv_buffer.view(torch.int16).random_(generator=torch.Generator().manual_seed(1))
    capacity_bytes = 4 * pages * _PAGE_BYTES
    directories = {name: arguments.directory / name.split()[-1] for name in (KVRING, FILE)}
    options = kvring_options(directories[KVRING], capacity_bytes)
    made = {
        KVRING: ("dynamic", options),
        # Without a bound it would fill the disk; SGLang has none by default.
        FILE: ("file", {"file_storage_path": str(directories[FILE])}),
    }
    backends = [
        Backend(name, make_backend(kind, storage_config(extra), pool), pool, directories[name])
        for name, (kind, extra) in made.items()
    ]
    _throughput(backends, arguments.rounds, pages)
    _prefetches(backends, arguments.rounds, pages, arguments.loads)
    backends[0].backend.close()


def _throughput(backends: list[Backend], rounds: int, pages: int) -> None:
    for number, one in in_turn(backends, rounds):
        first = (number + 1) * pages
        drop_page_cache(one.directory)
        with figures(pages * _PAGE_BYTES) as stored:
            one.each(one.store, first, pages)
            # `file` has left it to the page cache; kvring has nothing there.
            os.sync()
        drop_page_cache(one.directory)
        with figures(pages * _PAGE_BYTES) as loaded:
            one.each(one.load, first, pages)
        one.backend.clear()
        for operation, values in (("store", stored), ("load", loaded)):
            if number >= 0:
                emit(operation, _PAGE_BYTES, one.name, number, values)


def _prefetches(backends: list[Backend], rounds: int, pages: int, loads: int) -> None:
    """Store without pause in a thread; every 20 ms load 16 pages: how long does it take?"""
    half = pages // 2
    for number, one in in_turn(backends, rounds):
        one.each(one.store, 1 << 40, half)
        for _ in range(3):
            one.each(one.load, 1 << 40, half)
        drop_page_cache(one.directory)
        end = threading.Event()
        latencies_ms = []
        with ThreadPoolExecutor(1) as executor:
            started_s = time.perf_counter()
            storing = executor.submit(_store_on, one, number, half, end)
            try:
                time.sleep(0.2)
                for load in range(loads):
                    began_s = time.perf_counter()
                    page = load * _LOAD_PAGES % half
                    one.load(keys_of((1 << 40) + page, _LOAD_PAGES), rows_of(page, _LOAD_PAGES))
                    latencies_ms.append((time.perf_counter() - began_s) * 1000)
                    time.sleep(max(0.02 - (time.perf_counter() - began_s), 0))
            finally:
                end.set()
            stored = storing.result()
            elapsed_s = time.perf_counter() - started_s
        one.backend.clear()
        values = among_stores(latencies_ms, stored * _PAGE_BYTES, elapsed_s)
        if number >= 0:
            emit("loads among stores", _PAGE_BYTES, one.name, number, values)


def _store_on(one: Backend, number: int, half: int, end: threading.Event) -> int:
    """Store until the end, and return how many pages that were."""
    first = (1 << 41) + ((number + 1) << 32)
    pages = min(_BATCH_PAGES, half)
    stored = 0
    while not end.is_set():
        ensure_room(one.directory)
        one.store(keys_of(first + stored, pages), rows_of(half, pages))
        stored += pages
    return stored


if __name__ == "__main__":
    main()
