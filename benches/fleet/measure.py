"""`python -m benches.fleet.measure DIRECTORY`: real nodes in front of a real Redis.

It prints what docs/scale-out.md has: a chunk from the shared tier and from the own disk, hits on
the own disk with this or that behind it, and the simulator beside the real nodes.
"""

from __future__ import annotations

import argparse
import json
import queue
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lmcache.v1.distributed.api import ObjectKey

from benches.compare.tables import Table, print_table
from benches.engines.measuring import in_turn
from benches.fleet.model import Fleet, Outcome, Rates, simulate
from benches.fleet.node import key_of
from benches.fleet.real import play
from benches.fleet.traces import Conversations
from kvring.lmcache import KvringSharedL2Adapter, KvringSharedL2AdapterConfig
from kvring.shared_tier.buffers import Buffers
from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.lmcache_command import lmcache_environment
from tests.support.servers import Network, Redis
from tests.support.two_nodes import shared_spec

_ROOT = Path(__file__).resolve().parents[2]
_ROUNDS = 5
_CHUNK_BYTES = 4 << 20
_BATCH = 8
_BATCHES = 8
_SEED = 3
_DEADLINE_S = 60.0
_NO_ANSWER_S = 20.0
_SECOND = "the tier, as LMCache's second adapter"
_SLOW, _HANGS, _KILLED = "answers after 100 ms", "hangs", "is killed"
_STATES = ("well", _SLOW, _HANGS)


def main() -> None:
    """Measure all, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="on the disk that is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        rates = _shared_and_own(Path(directory) / "rates")
        _hits(Path(directory) / "hits", _STATES)
        # With sessions of its own: one that hung answers nothing any more.
        _hits(Path(directory) / "killed", (_KILLED,))
        _beside_the_simulator(Path(directory) / "fleet", rates)


class _Adapter:
    """A node's adapter, asked for one batch after the other."""

    def __init__(self, path: Path, redis: Redis) -> None:
        spec = shared_spec(path, redis.adapter, "16GiB", shared_load_deadline_ms=60_000)
        config = KvringSharedL2AdapterConfig.from_dict(spec["adapter_params"])
        self._adapter = KvringSharedL2Adapter(config)
        _wait(lambda: self.tier()["is_answering"])

    def tier(self) -> dict[str, Any]:
        self._adapter.pop_completed_store_tasks()
        return dict(self._adapter.report_status()["shared_tier"])

    def has_promoted(self) -> bool:
        tier = self.tier()
        return bool(tier["promoted"] >= tier["found"])

    def store(self, keys: list[ObjectKey], objects: list[Any]) -> None:
        before = self.tier()["stores"]
        task = self._adapter.submit_store_task(keys, objects)
        _wait(lambda: task in self._adapter.pop_completed_store_tasks())
        _wait(lambda: self.tier()["stores"] >= before + len(keys))

    def load(self, keys: list[ObjectKey], objects: list[Any]) -> None:
        task = self._adapter.submit_lookup_and_lock_task(keys, {})
        _wait(lambda: self._adapter.query_lookup_and_lock_result(task))
        task = self._adapter.submit_load_task(keys, objects)
        loaded = _wait(lambda: self._adapter.query_load_result(task)).popcount()
        self._adapter.submit_unlock(keys)
        if loaded != len(keys):
            raise RuntimeError(f"{loaded} of {len(keys)} chunks were loaded")

    def close(self) -> None:
        self._adapter.close()


def _shared_and_own(directory: Path) -> Rates:
    """Load from the shared tier, and then the same from the own disk, in turn."""
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    buffers = Buffers(1 << 30)
    taken = [buffers.take(_CHUNK_BYTES) for _ in range(_BATCH)]
    objects = [one for one in taken if one is not None]
    with Redis() as redis, ExitStack() as stack:
        first, second = (_Adapter(directory / name, redis) for name in ("first", "second"))
        stack.callback(first.close)
        stack.callback(second.close)
        for number, _ in in_turn(["all"], _ROUNDS):
            batches = [
                [key_of(number * 1000 + batch * _BATCH + one + 1000) for one in range(_BATCH)]
                for batch in range(_BATCHES)
            ]
            for keys in batches:
                for one in objects:
                    one.raw_data.fill_(number % 251)
                first.store(keys, objects)
            for name in ("the shared tier", "its own disk"):
                sample = _timed(second, batches, objects)
                if number >= 0:
                    samples[name].append(sample)
                _wait(second.has_promoted)
            # Redis has it in memory.
            redis.ask("flushall")
    rates = {name: statistics.median(rate for rate, _ in all_) for name, all_ in samples.items()}
    rows = [
        [
            name,
            f"{rates[name] / 1e6:,.0f}",
            f"{statistics.median(cpu for _, cpu in all_):.2f}",
            f"{_CHUNK_BYTES * _BATCH / rates[name] * 1e3:.1f}",
        ]
        for name, all_ in samples.items()
    ]
    header = ["a node loads from", "MB/s", "CPU s/GB", "a batch, ms"]
    title = f"Batches of {_BATCH} chunks of {_CHUNK_BYTES >> 20} MiB, one after the other"
    print_table(Table(title, header, rows))
    shared, own = rates["the shared tier"], rates["its own disk"]
    # One Redis serves one at a time.
    return Rates(disk_bytes_per_s=own, network_bytes_per_s=shared, shared_bytes_per_s=shared)


def _timed(
    adapter: _Adapter, batches: list[list[ObjectKey]], objects: list[Any]
) -> tuple[float, float]:
    """Return bytes per second, and CPU seconds for each GB."""
    moved = _CHUNK_BYTES * _BATCH * len(batches)
    before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    for keys in batches:
        adapter.load(keys, objects)
    took_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return moved / took_s, cpu_s / (moved / 1e9)


def _hits(directory: Path, states: tuple[str, ...]) -> None:
    """Time hits on the own disk with nothing behind it, and with a tier that is well or is not."""
    medians: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    with Redis() as redis, ExitStack() as stack:
        ways = {name: Network(redis.port) for name in ("kvring", "LMCache")}
        for way in ways.values():
            stack.callback(way.close)
        behind = {name: _at(way.port) for name, way in ways.items()}
        specs = {
            "nothing": [adapter_spec("plugin", directory / "alone")],
            "the tier, by kvring": [shared_spec(directory / "shared", behind["kvring"])],
            _SECOND: [adapter_spec("plugin", directory / "second"), behind["LMCache"]],
        }
        sessions = {}
        for name, given in specs.items():
            sessions[name] = _Session(*given)
            stack.callback(sessions[name].close)
        for state in states:
            for way in ways.values():
                way.delay_s = 0.1 if state == _SLOW else 0.0
            if state == _HANGS:
                redis.stop()
                stack.callback(redis.resume)
            if state == _KILLED:
                redis.kill()
            for number, name in in_turn(list(sessions), _ROUNDS):
                for unknown in (0, 1):
                    if state == _HANGS and name == _SECOND and (number, unknown) != (0, 0):
                        # It answers nothing any more.
                        continue
                    durations_s = sessions[name].time(unknown)
                    if number >= 0 and durations_s:
                        medians[state, name, unknown].append(statistics.median(durations_s))
        rows = [
            [state, name, *(_ms(medians[state, name, unknown]) for unknown in (0, 1))]
            for state in states
            for name in sessions
        ]
    header = ["the tier", "behind the store", "all on disk, ms", "and one unknown chunk, ms"]
    print_table(Table("Prefetch of 16 chunks of 1 MiB that are on the own disk", header, rows))


def _ms(medians_s: list[float]) -> str:
    return f"{statistics.median(medians_s) * 1e3:.1f}" if medians_s else "no answer in 20 s"


def _at(port: int) -> AdapterSpec:
    return {"type": "resp", "host": "127.0.0.1", "port": port}


class _Session:
    """LMCache's StorageManager in a process of its own (benches.fleet.prefetches)."""

    def __init__(self, *specs: AdapterSpec) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benches.fleet.prefetches", *map(json.dumps, specs)],
            cwd=_ROOT,
            env=lmcache_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._answer("ready")

    def time(self, unknown: int) -> list[float]:
        """Return how long each prefetch of a round took; empty if there is no answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{unknown}\n")
        self._process.stdin.flush()
        try:
            return [float(one) for one in json.loads(self._answer("["))]
        except queue.Empty:
            return []

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _answer(self, begin: str) -> str:
        # LMCache writes there, too.
        while not (line := self._lines.get(timeout=_NO_ANSWER_S)).startswith(begin):
            pass
        return line


def _beside_the_simulator(directory: Path, rates: Rates) -> None:
    """Play a trace to two real nodes by the clock, and to two that are simulated."""
    fleet = Fleet(
        2, memory_chunks=0, disk_chunks=None, shared_chunks=None, chunk_bytes=_CHUNK_BYTES
    )
    rows = []
    for requests_per_s in (4.0, 8.0, 12.0):
        trace = list(
            Conversations(
                requests_per_s, requests=200, system_prompts=5, system_chunks=4, pause_s=2.0
            ).play(_SEED)
        )
        simulated = simulate(trace, fleet, rates, _SEED)
        path = directory / f"{requests_per_s:g}"
        real = play(trace, simulated.nodes, fleet, rates, path, one_by_one=False)
        rows += [
            [f"{requests_per_s:g}", name, *_cells(outcome)]
            for name, outcome in (("simulated", simulated), ("real", real))
        ]
    header = ["requests/s", "nodes", "on disk", "shared", "computed", "p50, ms", "p99, ms", "mean"]
    print_table(Table("The same trace on simulated and on real nodes", header, rows))


def _cells(outcome: Outcome) -> list[str]:
    counts = [str(outcome.chunks[name]) for name in ("disk", "shared", "computed")]
    times_s = [outcome.first_token_at(0.5), outcome.first_token_at(0.99)]
    return counts + [f"{s * 1e3:.0f}" for s in (*times_s, statistics.mean(outcome.first_token_s))]


def _wait(ask: Callable[[], Any]) -> Any:
    """Return what is answered, once it is."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while not (answer := ask()):
        if time.monotonic() > deadline_s:
            raise RuntimeError("it does not come")
        time.sleep(0.0002)
    return answer


if __name__ == "__main__":
    main()
