"""Two bare devices share the keys under a mixed load, and one of them dies in the middle of it."""

from __future__ import annotations

import importlib
import logging
import random
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benches.compare.harness.arena import Arena
from benches.compare.harness.clients import Completion, NativeClient
from benches.compare.harness.peers import KVRING, make_blank
from benches.compare.harness.samples import RATE, Sample
from benches.compare.harness.scale import FailingPlan
from benches.compare.harness.session import PartResult, Session, progress
from benches.compare.harness.workload import (
    STALL_TIMEOUT_S,
    TransferError,
    chunk_names,
    require_ok,
    timed_get,
    timed_set,
)
from tests.support.devices import EXT4_LOOP, DeviceError, FailingDisk, failing_disk

BEFORE = "before"
MEANWHILE = "until it is left out"
AFTER = "after"
ALONE = "after, with the load of its own keys alone"

_LEAD_S = 0.5
_LOOK_INTERVAL_S = 0.02
_GIVE_UP_S = 60.0


def run(session: Session) -> PartResult:
    """Measure with a loop device of which the image's file system is made to give up."""
    result, plan = PartResult(), session.scale.failing
    block = session.second_block()
    # The image, and the file system that it lies on, within the second device.
    size_bytes = session.scale.second_device_size_bytes // 2
    arena = session.arena(same_filled=False)
    with session.device(EXT4_LOOP) as device:
        surviving = device.raw_device
        if surviving is None:
            raise DeviceError("it needs a bare device: leave --path away")
        result.device = device.bare_facts
        for round_number in range(session.scale.rounds):
            progress(f"failing, round {round_number + 1} of {session.scale.rounds}")
            with (
                _log_kept_back(),
                failing_disk(block, session.results_directory, size_bytes) as failing,
            ):
                for path in (surviving, failing.raw_device):
                    make_blank(path)
                connector = importlib.import_module("kvring").Connector(
                    [str(surviving), str(failing.raw_device)],
                    size_bytes * 3 // 4,
                    discard="never",
                )
                client = NativeClient(connector)
                try:
                    phases = _Run(client, connector, arena, plan, round_number).measure(failing)
                    result.peers["kvring"] = client.facts()
                finally:
                    client.close()
                    del connector
            for phase, values in phases.items():
                result.samples.append(Sample(phase, KVRING, round_number, values))
    result.notes.append(
        f"Two bare devices on one disk; of the keys of each {plan.batches_in_flight} batches of "
        f"{plan.batch_keys} x 1 MiB are always in flight, SETs and GETs by turns. Each transfer of "
        "the one device fails from some moment on. MB/s: of all keys."
    )
    return result


@contextmanager
def _log_kept_back() -> Iterator[None]:
    """Keep the hundreds of errors of a dead disk off the terminal."""
    log, handler = logging.getLogger("kvring"), logging.NullHandler()
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = True
        log.removeHandler(handler)


@dataclass
class _Slot:
    """Keys of one path. One batch of them at a time is under way: so their content is known."""

    is_surviving: bool
    keys: list[int]
    is_set: bool = False
    batch: list[int] = field(default_factory=list)


class _Run:
    """One death of a disk."""

    def __init__(
        self,
        client: NativeClient,
        connector: Any,
        arena: Arena,
        plan: FailingPlan,
        round_number: int,
    ) -> None:
        self._client, self._connector, self._arena, self._plan = client, connector, arena, plan
        self._random = random.Random(round_number)
        count = plan.chunk_count
        self._names = chunk_names(f"failing {round_number}", count)
        self._contents = arena.to_store(plan.chunk_size_bytes, count)
        self._destinations = arena.to_load(plan.chunk_size_bytes, count)
        # Which content each key has: that of its number is stored first.
        self._content_of = list(range(count))
        self._under_way: dict[int, _Slot] = {}
        self._surviving_bytes = 0
        self._all_bytes = 0
        self._stopped = False
        self._others_stopped = False
        self._poller = select.poll()
        self._poller.register(client.event_fd(), select.POLLIN)

    def measure(self, failing: FailingDisk) -> dict[str, dict[str, float]]:
        """Return what was moved in each phase."""
        timed_set(self._client, self._names, self._contents, self._plan.batch_keys)
        slots = list(self._slots(failing))
        for slot in slots:
            self._submit(slot)
        self._drive(_until(_LEAD_S))
        phases = {BEFORE: self._phase(_until(self._plan.window_s))}
        failing.fail()
        phases[MEANWHILE] = self._phase(self._until_left_out())
        self._drive(_until(_LEAD_S))
        phases[AFTER] = self._phase(_until(self._plan.window_s))
        self._others_stopped = True
        self._drive(_until(_LEAD_S))
        phases[ALONE] = self._phase(_until(self._plan.window_s))
        self._stopped = True
        while self._under_way:
            self._take()
        self._verify([key for slot in slots if slot.is_surviving for key in slot.keys])
        return phases

    def _slots(self, failing: FailingDisk) -> Iterator[_Slot]:
        """Share the keys of each path among its batches."""
        stored = importlib.import_module("kvring._native").StoredChunks
        doomed = {chunk["key"] for chunk in stored(str(failing.raw_device))}
        for is_surviving in (True, False):
            keys = [key for key, name in enumerate(self._names) if (name in doomed) != is_surviving]
            for number in range(self._plan.batches_in_flight):
                yield _Slot(is_surviving, keys[number :: self._plan.batches_in_flight])

    def _phase(self, is_over: Callable[[], bool]) -> dict[str, float]:
        self._surviving_bytes = self._all_bytes = 0
        started_s = time.perf_counter()
        self._drive(is_over)
        elapsed_s = time.perf_counter() - started_s
        return {
            "surviving_rate_mb_per_s": self._surviving_bytes / 1e6 / elapsed_s,
            RATE: self._all_bytes / 1e6 / elapsed_s,
            "duration_s": elapsed_s,
        }

    def _drive(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._take()

    def _until_left_out(self) -> Callable[[], bool]:
        next_look_s = 0.0
        gives_up_s = time.perf_counter() + _GIVE_UP_S

        def is_over() -> bool:
            nonlocal next_look_s
            now_s = time.perf_counter()
            if now_s < next_look_s:
                return False
            next_look_s = now_s + _LOOK_INTERVAL_S
            if now_s > gives_up_s:
                raise TransferError(f"the dead disk is in use after {_GIVE_UP_S:.0f} s")
            return not self._connector.stats()["paths"][1]["in_use"]

        return is_over

    def _submit(self, slot: _Slot) -> None:
        slot.is_set = not slot.is_set
        slot.batch = self._random.sample(slot.keys, self._plan.batch_keys)
        names = [self._names[key] for key in slot.batch]
        if slot.is_set:
            for key in slot.batch:
                self._content_of[key] = (self._content_of[key] + 1) % len(self._contents)
            chunks = [self._contents[self._content_of[key]] for key in slot.batch]
            future = self._client.submit_set(names, chunks)
        else:
            chunks = [self._destinations[key] for key in slot.batch]
            future = self._client.submit_get(names, chunks)
        self._under_way[future] = slot

    def _take(self) -> None:
        """Wait for completions, and follow up each of them."""
        if not self._poller.poll(STALL_TIMEOUT_S * 1000):
            raise TransferError(f"no completion in {STALL_TIMEOUT_S:.0f} s")
        for completion in self._client.drain():
            slot = self._under_way.pop(completion[0])
            self._count(slot, completion)
            if not self._stopped and (slot.is_surviving or not self._others_stopped):
                self._submit(slot)

    def _count(self, slot: _Slot, completion: Completion) -> None:
        if slot.is_surviving:
            require_ok(completion, all_true=True)
        moved_bytes = sum(completion[3] or []) * self._plan.chunk_size_bytes
        self._all_bytes += moved_bytes
        if slot.is_surviving:
            self._surviving_bytes += moved_bytes

    def _verify(self, keys: list[int]) -> None:
        """Load what the surviving path had all along, and compare it with what was last stored."""
        names = [self._names[key] for key in keys]
        chunks = [self._destinations[key] for key in keys]
        self._arena.clear_loaded(self._plan.chunk_count * self._plan.chunk_size_bytes)
        timed_get(self._client, names, chunks, self._plan.batch_keys)
        for key, chunk in zip(keys, chunks, strict=True):
            if bytes(chunk) != bytes(self._contents[self._content_of[key]]):
                raise TransferError(f"{self._names[key]} came back with wrong bytes")


def _until(elapsed_s: float) -> Callable[[], bool]:
    ends_s = time.perf_counter() + elapsed_s
    return lambda: time.perf_counter() >= ends_s
