"""One connection to a shared tier: an adapter, in a thread of its own that it may block."""

import logging
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import NativeConnectorL2Adapter
from lmcache.v1.memory_management import TensorMemoryObj
from lmcache.v1.platform.event_notifier import consume_fd

from kvring._native import qualified
from kvring.lmcache.variants import NOBODYS, Variants
from kvring.logs import LogLimit, warn
from kvring.shared_tier.buffers import Buffers, object_over
from kvring.shared_tier.client_adapter import ClientAdapter, create_adapter
from kvring.shared_tier.inbox import Inbox
from kvring.shared_tier.options import SharedOptions
from kvring.shared_tier.sidecars import SIDECAR_BYTES, UNCHECKED, Sidecar, key_text, sidecar_key

__all__ = ["Connection"]

_logger = logging.getLogger(__name__)

# Between lines about chunks that are not what their sidecars say.


@dataclass(eq=False)
class _Operation:
    """What is under way: for whom, since when, and the memory that the adapter uses."""

    answer: Callable[[Any], None]
    objects: list[TensorMemoryObj]
    sidecars: list[TensorMemoryObj] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)


class Connection:
    """What is under way with an adapter. It is for one thread, which never waits here.

    That thread gets the answers by `post`. An operation that the connection ends before has none,
    and its objects go back to the buffers.
    """

    def __init__(
        self,
        options: SharedOptions,
        buffers: Buffers,
        variants: Variants,
        counts: Counter[str],
        post: Callable[[Callable[[], None]], bool],
        opened: "Callable[[Connection], None]",
        failed: "Callable[[Connection, str], None]",
    ) -> None:
        """Begin to make the adapter.

        Args:
            options: What is connected to.
            buffers: Where what was under way goes back to.
            variants: What chunks mean, on all nodes.
            counts: Counts "unchecked" and "mismatches" there.
            post: Has the thread that owns this make a call; says whether it still will.
            opened: To call when the adapter is there.
            failed: To call when it could not be made, or is of no use any more, and why.

        Raises:
            OSError: The process has no descriptor left.
            RuntimeError: The process can have no more threads.
        """
        self.has_ended = False
        self._options = options
        self._buffers = buffers
        self._counts = counts
        self._post = post
        self._opened = opened
        self._failed = failed
        # An operation is finished by whoever takes it out.
        self._under_way: dict[_Operation, None] = {}
        # By the kind and number of a task of the adapter.
        self._awaited: dict[tuple[str, int], Callable[[Any], None]] = {}
        self._variants = variants
        self._log_limit = LogLimit()
        self._adapter: Any = None
        self._inbox = Inbox()
        self._thread = threading.Thread(
            target=self._run, daemon=True, name="kvring-shared-connection"
        )
        self._thread.start()

    def lookup(
        self,
        keys: list[ObjectKey],
        layouts: dict[int, Any],
        answer: Callable[[list[Sidecar | None]], None],
    ) -> None:
        """Answer with the sidecars of the keys that are there."""
        self._begin(_Operation(answer, []), partial(self._look_up, keys, layouts))

    def load(
        self,
        keys: list[ObjectKey],
        sidecars: list[Sidecar],
        objects: list[TensorMemoryObj],
        answer: Callable[[list[bool]], None],
    ) -> None:
        """Load what fits its sidecar; the objects are the adapter's until the answer."""
        self._begin(_Operation(answer, objects), partial(self._load, keys, sidecars))

    def store(
        self,
        keys: list[ObjectKey],
        variants: list[int],
        objects: list[TensorMemoryObj],
        answer: Callable[[bool], None],
    ) -> None:
        """Store chunks and their sidecars; the objects are the adapter's until the answer."""
        self._begin(_Operation(answer, objects), partial(self._store, keys, variants))

    def note_mismatch(self, key: ObjectKey) -> None:
        """Count a chunk that is not what its sidecar says; the log tells of one a minute."""
        self._counts["mismatches"] += 1
        if not self._log_limit.is_due("mismatch"):
            return
        text = (
            "the shared tier %s has other bytes under key %s than its checksum says: a miss (%d "
            "such chunks so far); the next store of the key replaces them"
        )
        warn(_logger, text, self._options.name, key_text(key), self._counts["mismatches"])

    def waits_for_s(self) -> float:
        """Return the age in seconds of what was begun first and is not answered."""
        oldest = next(iter(list(self._under_way)), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.began_s

    def last_error(self) -> str:
        """Return why the adapter failed last; empty where it does not tell."""
        return str(getattr(self._adapter, "last_error", ""))

    def close(self) -> None:
        """End the connection, when the adapter lets it. Idempotent."""
        self._inbox.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, for so long at most."""
        self._thread.join(timeout_s)

    def _begin(self, operation: _Operation, ask: Callable[[_Operation], None]) -> None:
        self._under_way[operation] = None
        if not self._inbox.post(partial(ask, operation)):
            self._give_back([operation for operation in [operation] if self._take(operation)])

    def _take(self, operation: _Operation) -> bool:
        return self._under_way.pop(operation, operation) is None

    def _give_back(self, operations: list[_Operation]) -> None:
        self._buffers.give_back([one for operation in operations for one in operation.objects])

    # --- in its own thread ---

    def _run(self) -> None:
        try:
            self._adapter = create_adapter(self._options.adapter)
            self._post(partial(self._opened, self))
            self._serve()
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            self._inbox.close()
            self._post(partial(self._failed, self, str(error) or type(error).__name__))
        finally:
            self._end()

    def _serve(self) -> None:
        poll = select.poll()
        adapter = self._adapter
        for descriptor in {
            self._inbox.descriptor,
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        }:
            poll.register(descriptor, select.POLLIN)
        while not self._inbox.is_closed:
            for descriptor, _ in poll.poll():
                consume_fd(descriptor)
            self._inbox.work_off()
            self._take_results()

    def _take_results(self) -> None:
        for task, result in self._adapter.pop_completed_store_tasks().items():
            self._awaited.pop(("store", task))(result.is_successful())
        for kind, task in list(self._awaited):
            if kind == "store":
                continue
            is_load = kind == "load"
            query = "query_load_result" if is_load else "query_lookup_and_lock_result"
            bitmap = getattr(self._adapter, query)(task)
            if bitmap is not None:
                self._awaited.pop((kind, task))(bitmap)

    def _end(self) -> None:
        """Close the adapter, and give back what nobody will answer for.

        LMCache's native connectors wait for their threads. Others drop what is under way, and their
        threads may still read or write there (0.5.6: `s3`).
        """
        is_unused = self._adapter is None
        try:
            if self._adapter is not None:
                self._adapter.close()
                is_unused = isinstance(self._adapter, NativeConnectorL2Adapter | ClientAdapter)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            warn(
                _logger,
                "the adapter of shared tier %s could not be closed: %s",
                self._options.name,
                error,
            )
        operations = []
        while self._under_way:
            operations.append(self._under_way.popitem()[0])
        objects = [one for operation in operations for one in operation.objects]
        if is_unused or not objects:
            self._buffers.give_back(objects)
        else:
            sidecars = [one for operation in operations for one in operation.sidecars]
            self._buffers.abandon(objects + sidecars)
            warn(
                _logger,
                "the shared tier %s may still use %d buffers: they are lost to shared_buffer until "
                "a restart",
                self._options.name,
                len(objects),
            )
        self._adapter = None
        self.has_ended = True

    def _answer(self, operation: _Operation, result: Any) -> None:
        def answer() -> None:
            if self._take(operation):
                operation.answer(result)

        self._post(answer)

    def _look_up(
        self, keys: list[ObjectKey], layouts: dict[int, Any], operation: _Operation
    ) -> None:
        names, variants = self._names(keys), self._variants.of_lookup(keys, layouts)
        asked = names + [sidecar_key(name) for name in names]

        def found(bitmap: Any) -> None:
            # A lock there keeps out this adapter's own deletes alone, of which there are none.
            self._adapter.submit_unlock(bitmap.gather(asked))
            are_there = [bitmap.test(number) for number in range(len(asked))]
            have_chunk, have_sidecar = are_there[: len(names)], are_there[len(names) :]
            results = [
                self._without_sidecar() if there and variant != NOBODYS else None
                for there, variant in zip(have_chunk, variants, strict=True)
            ]
            both = [
                number
                for number, is_checked in enumerate(have_sidecar)
                if is_checked and have_chunk[number]
            ]
            self._counts["unchecked"] += sum(have_chunk) - len(both)
            self._read_sidecars(names, variants, both, results, operation)

        task = self._adapter.submit_lookup_and_lock_task(asked, layouts)
        self._awaited["lookup", task] = found

    def _without_sidecar(self) -> Sidecar | None:
        # Of which epoch it is nobody knows.
        is_refused = self._options.limits.requires_checksums or self._variants.epoch()
        return None if is_refused else UNCHECKED

    def _read_sidecars(
        self,
        names: list[ObjectKey],
        variants: list[int | None],
        numbers: list[int],
        results: list[Sidecar | None],
        operation: _Operation,
    ) -> None:
        """Read the sidecars of some of the keys, and answer with all results of these variants."""
        if not numbers:
            self._answer(operation, results)
            return
        operation.sidecars = [_small_object(bytes(SIDECAR_BYTES)) for _ in numbers]

        def read(bitmap: Any) -> None:
            for position, number in enumerate(numbers):
                content = operation.sidecars[position].raw_data.numpy().tobytes()
                sidecar = Sidecar.parse(content) if bitmap.test(position) else None
                is_asked_for = sidecar is not None and variants[number] in (None, sidecar.variant)
                results[number] = sidecar if is_asked_for else None
            self._answer(operation, results)

        wanted = [sidecar_key(names[number]) for number in numbers]
        task = self._adapter.submit_load_task(wanted, list(operation.sidecars))
        self._awaited["load", task] = read

    def _load(self, keys: list[ObjectKey], sidecars: list[Sidecar], operation: _Operation) -> None:
        names = self._names(keys)
        variants = self._variants.of_objects(keys, operation.objects)

        def loaded(bitmap: Any) -> None:
            results = []
            for number, (name, sidecar) in enumerate(zip(names, sidecars, strict=True)):
                has_come = bitmap.test(number)
                chunk = operation.objects[number]
                fits = has_come and sidecar.fits(name, chunk, variants[number])
                # Not one of another epoch, or of other weights than its lookup asked for.
                if has_come and not fits and sidecar.variant == variants[number]:
                    self.note_mismatch(name)
                results.append(fits)
            self._answer(operation, results)

        task = self._adapter.submit_load_task(names, list(operation.objects))
        self._awaited["load", task] = loaded

    def _store(self, keys: list[ObjectKey], variants: list[int], operation: _Operation) -> None:
        names = self._names(keys)

        def stored_chunks(is_stored: bool) -> None:
            if not is_stored:
                self._answer(operation, False)
                return
            # Behind the chunks: one that is there says that its chunk is.
            wanted = [sidecar_key(name) for name in names]
            task = self._adapter.submit_store_task(wanted, list(operation.sidecars))
            self._awaited["store", task] = partial(self._answer, operation)

        operation.sidecars = [
            _small_object(Sidecar.of(name, one, variant).content())
            for name, one, variant in zip(names, operation.objects, variants, strict=True)
        ]
        task = self._adapter.submit_store_task(names, list(operation.objects))
        self._awaited["store", task] = stored_chunks

    def _names(self, keys: list[ObjectKey]) -> list[ObjectKey]:
        """Return the keys as they are there: of a model by this identity, as in the store."""
        identity = self._options.identity
        if not identity:
            return keys
        return [replace(key, model_name=qualified(identity, key.model_name)) for key in keys]


def _small_object(content: bytes) -> TensorMemoryObj:
    return object_over(torch.frombuffer(bytearray(content), dtype=torch.uint8))
