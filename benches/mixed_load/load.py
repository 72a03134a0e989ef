"""The load: one store, stores without pause, and a batch of loads every 20 ms.

Runs as a script under the interpreter of the build that it measures, and uses nothing but that
build's `kvring`. Each line that it reads is a number of seconds to go on for; it answers with a
line of JSON.
"""

from __future__ import annotations

import gc
import json
import select
import sys
import time
from typing import Any

import kvring

MIB = 1 << 20
CAPACITY_BYTES = 2048 * MIB
# Loaded again and again, and pinned: misses would be fast.
HELD, HELD_BYTES, HELD_PER_BATCH = 512, 256 << 10, 7
# As many are always on their way, under keys of which most were stored before.
STORED_BYTES, STORED_IN_FLIGHT, STORED_KEYS = MIB, 128, 4096
GET_INTERVAL_S = 0.02
HANG_S = 120.0


class Load:
    """A store, and what is under way on it."""

    def __init__(self, directory: str) -> None:
        """Open the store and fill it with what is loaded later."""
        self._connector = kvring.Connector(directory, CAPACITY_BYTES)
        self._poll = select.poll()
        self._poll.register(self._connector.event_fd(), select.POLLIN)
        self._written = 0
        self._sets: dict[int, bytearray] = {}
        self._free = [bytearray(STORED_BYTES) for _ in range(STORED_IN_FLIGHT)]
        self._memory: list[Any] = [bytearray(HELD_BYTES) for _ in range(HELD_PER_BATCH)]
        self._memory.append(bytearray(STORED_BYTES))
        self._held = [f"mixed/load@00000000@0@{number:064x}" for number in range(HELD)]
        content = bytes(range(256)) * (HELD_BYTES // 256)
        done = self._wait(self._connector.submit_batch_set(self._held, [content] * HELD))
        if not done or not all(self._connector.pin(self._held)):
            raise RuntimeError("the chunks to load cannot be stored and pinned")

    def run(self, seconds: float) -> dict[str, Any]:
        """Go on for so long, and say what it was like."""
        latencies_us: list[int] = []
        longest_us: dict[str, int] = {}
        stored = hits = asked = turn = 0
        load: tuple[int, int] | None = None
        begin = due = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            while self._free:
                self._store(longest_us)
            if load is None and now >= due:
                keys = [
                    self._held[(turn * 31 + step * 73) % HELD] for step in range(HELD_PER_BATCH)
                ]
                # One whose SET is probably still queued.
                keys.append(self._stored_key(self._written - 1 - turn % STORED_IN_FLIGHT))
                self._timed(longest_us, "exists", self._connector.submit_batch_exists, keys)
                started = time.perf_counter_ns()
                future_id = self._timed(
                    longest_us, "get", self._connector.submit_batch_get, keys, self._memory
                )
                load = (future_id, started)
                if turn % 10 == 0:
                    gone = [self._stored_key(self._written + STORED_KEYS // 2)]
                    self._timed(longest_us, "delete", self._connector.submit_batch_delete, gone)
                turn, due = turn + 1, max(due + GET_INTERVAL_S, now)
            wait_s = HANG_S if load is not None else max(due - time.perf_counter(), 0.0)
            if not self._poll.poll(wait_s * 1000) and load is not None:
                raise RuntimeError(f"nothing comes: {self._connector.stats()}")
            for future_id, ok, error, results in self._connector.drain_completions():
                if load is not None and future_id == load[0]:
                    latencies_us.append((time.perf_counter_ns() - load[1]) // 1000)
                    hits, asked, load = hits + sum(results), asked + len(results), None
                elif future_id in self._sets:
                    if not ok:
                        raise RuntimeError(f"a chunk is not stored: {error}")
                    self._free.append(self._sets.pop(future_id))
                    stored += 1
        lasted_s = time.perf_counter() - begin
        if load is not None:
            self._wait(load[0])
        return {
            "latencies_us": latencies_us,
            "longest_submit_us": longest_us,
            "stored_bytes": stored * STORED_BYTES,
            "seconds": lasted_s,
            "hits": hits,
            "asked": asked,
        }

    def _stored_key(self, number: int) -> str:
        return f"mixed/load@00000001@0@{number % STORED_KEYS:064x}"

    def _store(self, longest_us: dict[str, int]) -> None:
        memory, number = self._free.pop(), self._written
        # Other bytes than before: the same ones would not be written.
        memory[:8] = number.to_bytes(8, "little")
        self._written += 1
        key = [self._stored_key(number)]
        future_id = self._timed(longest_us, "set", self._connector.submit_batch_set, key, [memory])
        self._sets[future_id] = memory

    def _timed(self, longest_us: dict[str, int], name: str, submit: Any, *arguments: Any) -> int:
        started = time.perf_counter_ns()
        future_id: int = submit(*arguments)
        took_us = (time.perf_counter_ns() - started) // 1000
        longest_us[name] = max(longest_us.get(name, 0), took_us)
        return future_id

    def _wait(self, wanted: int) -> bool:
        """Wait for one batch; SETs that end meanwhile give their memory back."""
        while True:
            if not self._poll.poll(HANG_S * 1000):
                raise RuntimeError(f"nothing comes: {self._connector.stats()}")
            came = {one[0]: one[1] for one in self._connector.drain_completions()}
            for future_id in came.keys() & self._sets.keys():
                self._free.append(self._sets.pop(future_id))
            if wanted in came:
                return bool(came[wanted])


def main() -> None:
    """Serve the process that compares."""
    # Its pauses are not the store's.
    gc.disable()
    load = Load(sys.argv[1])
    print(json.dumps({"kvring": str(kvring.__file__)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(load.run(float(line))), flush=True)


if __name__ == "__main__":
    main()
