"""`python -m benches.pinning`: what pinned memory costs by the pages it is made of.

A GiB of 4 KiB pages, of transparent huge pages and of huge pages that were set aside is registered
with a store and released; 1 MiB chunks are loaded into it, registered and not. Alternating rounds,
medians.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benches.compare.clients import NativeClient
from benches.compare.samples import CPU, RATE
from benches.compare.workload import chunk_names, process_cpu_s, timed_get, timed_set
from kvring import Connector

_MIB = 1 << 20
_MEMORY_BYTES = 1024 * _MIB
_CHUNK_BYTES = _MIB
_BATCH_KEYS = 16
_HUGE_PAGE_BYTES = 2 * _MIB
_MAP_HUGETLB = 0x40000
_MADV_NOHUGEPAGE = 15
_HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")


@dataclass
class _Figures:
    """What was measured with one kind of memory, a value each round."""

    register_s: list[float] = field(default_factory=list)
    register_cpu_s: list[float] = field(default_factory=list)
    release_s: list[float] = field(default_factory=list)
    rate_mb_per_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    cpu_s_per_gb: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})


def _mapped(flags: int, advice: int | None) -> mmap.mmap:
    """Map memory, and touch all of it."""
    memory = mmap.mmap(-1, _MEMORY_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    if advice is not None:
        memory.madvise(advice)
    for at in range(0, _MEMORY_BYTES, _MIB):
        memory[at : at + _MIB] = bytes(_MIB)
    return memory


@contextmanager
def _set_aside() -> Iterator[None]:
    """Have huge pages for the memory set aside meanwhile. Raises OSError where that cannot be."""
    before = _HUGE_PAGES.read_text().strip()
    needed = int(before) + _MEMORY_BYTES // _HUGE_PAGE_BYTES
    _HUGE_PAGES.write_text(str(needed))
    try:
        if int(_HUGE_PAGES.read_text()) < needed:
            raise OSError("the system has no memory in one piece for so many huge pages")
        yield
    finally:
        _HUGE_PAGES.write_text(before)


def _measure(client: NativeClient, connector: Any, memory: mmap.mmap, figures: _Figures) -> None:
    names = chunk_names("pinning", _MEMORY_BYTES // _CHUNK_BYTES)
    whole = memoryview(memory)
    chunks = [whole[at : at + _CHUNK_BYTES] for at in range(0, _MEMORY_BYTES, _CHUNK_BYTES)]
    for registered in (False, True):
        if registered:
            cpu_s, started_s = process_cpu_s(), time.perf_counter()
            handle = connector.register_memory(memory)
            figures.register_s.append(time.perf_counter() - started_s)
            figures.register_cpu_s.append(process_cpu_s() - cpu_s)
            if handle.registered_bytes < _MEMORY_BYTES:
                raise SystemExit("pinning: the system refused it; the log says why")
        values = timed_get(client, names, chunks, _BATCH_KEYS).transfer_values(_MEMORY_BYTES)
        figures.rate_mb_per_s[registered].append(values[RATE])
        figures.cpu_s_per_gb[registered].append(values[CPU])
    started_s = time.perf_counter()
    handle.close()
    figures.release_s.append(time.perf_counter() - started_s)
    for chunk in chunks:
        chunk.release()
    whole.release()


def _try(kind: _Kind, client: NativeClient, connector: Any, figures: _Figures) -> OSError | None:
    """Measure once; return why it is not possible."""
    try:
        with _set_aside() if kind.is_set_aside else nullcontext(), kind.mapped() as memory:
            _measure(client, connector, memory, figures)
    except OSError as error:
        return error
    return None


@dataclass(frozen=True)
class _Kind:
    mapped: Callable[[], mmap.mmap]
    is_set_aside: bool = False


def _kinds() -> dict[str, _Kind]:
    return {
        "4 KiB": _Kind(lambda: _mapped(0, _MADV_NOHUGEPAGE)),
        "2 MiB, transparent": _Kind(lambda: _mapped(0, mmap.MADV_HUGEPAGE)),
        "2 MiB, hugetlb": _Kind(lambda: _mapped(_MAP_HUGETLB, None), is_set_aside=True),
    }


def _print(all_figures: dict[str, _Figures]) -> None:
    table = Table(title="1 GiB of memory; loads of 1 MiB into it; medians")
    table.add_column("pages")
    for name in ("register", "CPU of it", "release", "loads, not registered", "loads, registered"):
        table.add_column(name, justify="right")
    for kind, figures in all_figures.items():
        loads = [
            f"{statistics.median(figures.cpu_s_per_gb[registered]):.4f} CPU s/GB,"
            f" {statistics.median(figures.rate_mb_per_s[registered]):,.0f} MB/s"
            for registered in (False, True)
        ]
        times = (figures.register_s, figures.register_cpu_s, figures.release_s)
        table.add_row(kind, *(f"{statistics.median(one) * 1000:.2f} ms" for one in times), *loads)
    Console().print(table)


def _opened(directory: str) -> Any:
    return Connector(directory, 2 * _MEMORY_BYTES, checksum="off", io_threads=1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benches.pinning", description=__doc__)
    parser.add_argument("--path", type=Path, required=True, help="where the store is made")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.path.is_dir():
        parser.error(f"--path {str(arguments.path)!r} is not a directory; name one that exists")
    kinds = _kinds()
    all_figures = {kind: _Figures() for kind in kinds}
    with (
        tempfile.TemporaryDirectory(prefix="kvring-pinning-", dir=arguments.path) as directory,
        _opened(directory) as connector,
    ):
        client = NativeClient(connector)
        content = [memoryview(bytes(_CHUNK_BYTES))] * (_MEMORY_BYTES // _CHUNK_BYTES)
        names = chunk_names("pinning", len(content))
        timed_set(client, names, content, _BATCH_KEYS)
        for round_number in range(arguments.rounds):
            for kind in list(kinds)[:: 1 if round_number % 2 == 0 else -1]:
                reason = _try(kinds[kind], client, connector, all_figures[kind])
                if reason is not None:
                    print(f"pinning: {kind} is left out: {reason}")
                    del kinds[kind]
    _print({kind: all_figures[kind] for kind in kinds})


if __name__ == "__main__":
    main()
