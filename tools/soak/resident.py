"""The process of the soak that lives through all of it, and opens stores again and again.

`python -m tools.soak.resident DIRECTORY SMALL_DIRECTORY SECONDS SEED` prints a JSON object each
time that all stores are closed and a sample is due. SMALL_DIRECTORY is on a file system that fills
up, or empty.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import random
import select
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import kvring
from tools.stateful.process import HANG_DEADLINE_S, content

_MIB = 1 << 20
_KEYS = 1500
_LENGTHS = (100, 4096, 30_001, 65_536, 65_536, 300_001, _MIB)
_LIFE_S = 0.6
_BATCHES_UNDER_WAY = 6
_POLICIES = ("adaptive", "lfu", "lru", "fifo", "mru")


def _length_of(number: int) -> int:
    return _LENGTHS[number % len(_LENGTHS)]


class _Place:
    """A store that is opened again and again, and what its keys may have."""

    def __init__(self, paths: list[str], layout: str, capacity: str) -> None:
        self.paths, self.layout, self.capacity = paths, layout, capacity
        # The version of the last SET or DELETE that was answered: what is older is gone for good.
        self.oldest = [0] * _KEYS


class _Life:
    """A place while it is open."""

    def __init__(self, place: _Place, number: int, totals: Counter[str]) -> None:
        self._place, self._totals = place, totals
        self._random = random.Random(number)
        self._store = kvring.Connector(
            place.paths,
            place.capacity,
            layout=place.layout,
            durability=("best_effort", "persistent")[number // 2 % 2],
            eviction=_POLICIES[number % len(_POLICIES)],
            io_threads=(1, 2, "auto")[number % 3],
            engine=("auto", "auto", "posix")[number // 3 % 3],
            ttl=("7d", "7d", "1s")[number // 5 % 3],
            lease_s=number % 2,
            min_free=0,
        )
        self._poll = select.poll()
        self._poll.register(self._store.event_fd(), select.POLLIN)
        self._under_way: dict[int, tuple[str, float, Any]] = {}

    def work(self, latencies_ms: dict[str, list[float]]) -> None:
        """Keep batches of every kind under way for a while, and check each answer."""
        end_s = time.monotonic() + _LIFE_S
        while time.monotonic() < end_s:
            while len(self._under_way) < _BATCHES_UNDER_WAY:
                self._submit()
            self._drain(latencies_ms)
        # Mostly each is answered, or this ends. Else some are under way when the store is closed.
        if self._random.random() < 0.7:
            while self._under_way:
                self._drain(latencies_ms)

    def close(self) -> None:
        """Close it, in the middle perhaps: what is not answered by then never is."""
        closed = self._store.close(HANG_DEADLINE_S, self._random.choice([0.0, 5.0]))
        self._totals["closes"] += 1
        if not closed["shutdown_clean"] or closed["memory_held"]:
            self._totals["not_clean"] += 1

    def _submit(self) -> None:
        numbers = self._random.sample(range(_KEYS), 16)
        keys = [f"soak@0@0@{number:x}" for number in numbers]
        kind = self._random.choices(["set", "get", "exists", "delete"], [6, 8, 2, 1])[0]
        self._totals["versions"] += 1
        version = self._totals["versions"]
        told: Any = (numbers, version)
        if kind == "set":
            chunks = [(version, _length_of(number)) for number in numbers]
            memory = [content(key, chunk) for key, chunk in zip(keys, chunks, strict=True)]
            future_id = self._store.submit_batch_set(keys, memory)
        elif kind == "get":
            loaded = [bytearray(_length_of(number)) for number in numbers]
            # What was answered by now is seen by it.
            told = (numbers, loaded, [self._place.oldest[number] for number in numbers])
            future_id = self._store.submit_batch_get(keys, loaded)
        elif kind == "exists":
            future_id = self._store.submit_batch_exists(keys)
        else:
            numbers = self._random.sample(range(_KEYS), 300)
            told = (numbers, version)
            keys = [f"soak@0@0@{number:x}" for number in numbers]
            future_id = self._store.submit_batch_delete(keys)
        self._under_way[future_id] = (kind, time.monotonic(), told)
        self._totals["batches"] += 1

    def _drain(self, latencies_ms: dict[str, list[float]]) -> None:
        if not self._poll.poll(HANG_DEADLINE_S * 1000):
            message = f"no completion of {len(self._under_way)} batches: {self._store.stats()}"
            raise RuntimeError(message)
        for future_id, _, _, results in self._store.drain_completions():
            kind, begin_s, told = self._under_way.pop(future_id)
            latencies_ms[kind].append((time.monotonic() - begin_s) * 1e3)
            self._totals["answers"] += 1
            if kind == "get":
                self._compare(told, results)
            elif kind in ("set", "delete"):
                numbers, version = told
                for number, is_done in zip(numbers, results, strict=True):
                    # Where it failed, it is not there; nor is what was there before.
                    self._totals[f"{kind}_failed"] += not is_done
                    oldest = self._place.oldest
                    oldest[number] = max(oldest[number], version if is_done else 0)

    def _compare(
        self, told: tuple[list[int], list[bytearray], list[int]], results: list[bool]
    ) -> None:
        for number, memory, least, hit in zip(*told, results, strict=True):
            if not hit:
                continue
            self._totals["hits"] += 1
            key = f"soak@0@0@{number:x}"
            try:
                version = int(memory[: 40 + len(key)].split()[1])
            except (ValueError, IndexError):
                version = 0
            if version < max(least, 1) or memory != content(key, (version, len(memory))):
                self._totals["wrong"] += 1
                print(json.dumps({"wrong": f"{key}: version {version}, {least} or later wanted"}))


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


class _MallocInfo(ctypes.Structure):
    """What mallinfo2(3) returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _malloc_bytes() -> int:
    """What malloc has given out, in all arenas: unlike pages, it tells leaks from fragments."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        # Before glibc 2.33.
        return 0
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _disk_bytes(directory: Path) -> int:
    return sum(one.lstat().st_blocks * 512 for one in directory.rglob("*"))


def _percentile_99(latencies_ms: list[float]) -> float:
    if len(latencies_ms) < 2:
        return 0.0
    return statistics.quantiles(latencies_ms, n=100)[98]


def _places(directory: Path, small: str) -> list[_Place]:
    places = []
    for layout in ("extents", "files"):
        for count in (1, 3):
            paths = [str(directory / f"{layout}-{count}-{number}") for number in range(count)]
            places.append(_Place(paths, layout, "32MiB"))
    if small:
        # Past what the file system has: it answers ENOSPC.
        places.append(_Place([f"{small}/store"], "extents", "256MiB"))
    return places


def _main(directory: Path, small: str, seconds: float, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    # In `make harden` others are waited for, and this takes its hour anyway.
    os.nice(5)
    places, totals = _places(directory, small), Counter[str]()
    begin_s = time.monotonic()
    interval_s = min(max(seconds / 200, 2.0), 60.0)
    due_s, number = begin_s + interval_s, seed * 1000
    latencies_ms: dict[str, list[float]] = {"set": [], "get": [], "exists": [], "delete": []}
    while (now_s := time.monotonic()) < begin_s + seconds:
        # Two at a time, now and then.
        chosen = [places[number % len(places)]]
        if number % 4 == 0:
            chosen.append(places[(number + 1) % len(places)])
        lives = [_Life(place, number, totals) for place in chosen]
        for life in lives:
            life.work(latencies_ms)
        for life in lives:
            life.close()
        del lives, life
        number += 1
        if now_s < due_s or number % len(places):
            continue
        due_s = now_s + interval_s
        gc.collect()
        sample = {
            "time_s": now_s - begin_s,
            "anonymous_bytes": _anonymous_bytes(),
            "malloc_bytes": _malloc_bytes(),
            "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
            "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - itself is one
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "disk_bytes": _disk_bytes(directory),
            "get_p99_ms": _percentile_99(latencies_ms["get"]),
            "set_p99_ms": _percentile_99(latencies_ms["set"]),
        }
        print(json.dumps({**sample, "totals": totals}), flush=True)
        for all_of_kind in latencies_ms.values():
            all_of_kind.clear()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
