"""A connection to a shared tier: made anew where it was lost, and asked whether it answers."""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.memory_management import TensorMemoryObj

from kvring.lmcache.variants import Variants
from kvring.logs import warn
from kvring.shared_tier.buffers import Buffers
from kvring.shared_tier.connection import Connection
from kvring.shared_tier.options import SharedOptions
from kvring.shared_tier.sidecars import Sidecar

__all__ = ["Link"]

_logger = logging.getLogger(__name__)

_RECONNECT_PAUSE_S: Final = 2.0
# Between questions whether it is there: while it answers, and while it does not.
_PROBE_PAUSE_S: Final = 5.0
_LATE_PROBE_PAUSE_S: Final = 0.5
# After answers that were late, one after the other, nobody asks it for so long at most.
_LONGEST_PAUSE_S: Final = 60.0
# One that does not answer the probe for so long gets a new connection.
_LOST_AFTER_S: Final = 5.0

# So does one that leaves a load or a store unanswered for so long: a slow one may take a minute for
# all that waits in its buffers.
_UNANSWERED_S: Final = 120.0
# Connections that end, each of which has threads.
_MOST_ENDING: Final = 4

_PROBE_BYTES: Final = 64
# The same for all nodes.
_PROBE: Final = ObjectKey(chunk_hash=bytes(range(32)), model_name="kvring-probe", kv_rank=0)


class Link:
    """Has a connection, or none for now. It is for one thread, which its maker names by `post`."""

    def __init__(
        self,
        options: SharedOptions,
        buffers: Buffers,
        variants: Variants,
        counts: Counter[str],
        post: Callable[[Callable[[], None]], bool],
    ) -> None:
        """Have no connection yet.

        Args:
            options: What is connected to.
            buffers: Where what was under way goes back to.
            variants: What chunks mean, on all nodes.
            counts: Counts under "lost" how often a connection was lost, and what connections count.
            post: Has the link's thread make a call; says whether it still will.
        """
        self.connection: Connection | None = None
        # Whether it answered the last question in time.
        self.is_answering = False
        self._options = options
        self._buffers = buffers
        self._variants = variants
        self._counts = counts
        self._post = post
        # It is being made.
        self._opening: Connection | None = None
        # They may wait for what they still ask, and for ever.
        self._ending: list[Connection] = []
        self._has_told = False
        self._next_connect_s = 0.0
        self._next_probe_s = 0.0
        self._probe_began_s: float | None = None
        self._doubted_s, self._pause_s = -math.inf, 0.0
        self._wrong = ""

    def next_s(self) -> float:
        """Return when `work` has something to do, by the monotonic clock."""
        return self._next_connect_s if self.connection is None else self._next_probe_s

    def work(self) -> str:
        """Connect, or ask whether it answers, where it is time for that.

        Returns:
            Why the connection is of no use; empty as long as it is.
        """
        now_s = time.monotonic()
        if self._wrong:
            return self._wrong
        if self.connection is not None:
            # One of several threads of an adapter may hang, while another answers the probe.
            longest_s = max(_UNANSWERED_S, 2 * self._options.limits.load_deadline_s)
            if self.connection.waits_for_s() > longest_s:
                return f"a load or store has not been answered for {longest_s:g} s"
        if now_s < self.next_s():
            return ""
        if self.connection is not None:
            return self._probe(self.connection, now_s)
        self._next_connect_s = now_s + _RECONNECT_PAUSE_S
        self._ending = [one for one in self._ending if not one.has_ended]
        if self._opening is None and len(self._ending) < _MOST_ENDING:
            self._connect()
        return ""

    def doubt(self, waited_s: float) -> None:
        """Take it for one that does not answer: somebody has waited so long in vain.

        It is asked again after as much time, and after twice as much each time that it is late
        again. So a tier that is too slow for its load costs some requests a deadline, and not all.
        """
        now_s = time.monotonic()
        if now_s > self._doubted_s + 2 * _LONGEST_PAUSE_S:
            self._pause_s = 0.0
        # Requests that are late at the same time lengthen the pause once.
        if self.is_answering:
            self._pause_s = min(max(2 * self._pause_s, waited_s), _LONGEST_PAUSE_S)
        self.is_answering, self._doubted_s = False, now_s
        self._next_probe_s = now_s + self._pause_s

    def trust(self) -> None:
        """Note that a load came in time."""
        self._pause_s = 0.0

    def check(self) -> None:
        """Ask whether it still answers, at once."""
        if self.is_answering:
            self._next_probe_s = 0.0

    def lose(self, why: str, *, is_over: bool = False) -> None:
        """Give the connection up; what was under way is answered for by nobody."""
        self.is_answering, self._wrong = False, ""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
            self._ending.append(connection)
            self._next_connect_s = time.monotonic() + _RECONNECT_PAUSE_S
        if is_over:
            self._end()
        elif connection is not None:
            self._counts["lost"] += 1
            self._tell_lost(why)

    def _end(self) -> None:
        ending, self._ending = self._ending, []
        if self._opening is not None:
            self._opening.close()
            ending.append(self._opening)
        deadline_s = time.monotonic() + _LOST_AFTER_S
        for one in ending:
            one.join(max(deadline_s - time.monotonic(), 0.0))

    def _connect(self) -> None:
        try:
            self._opening = Connection(
                self._options,
                self._buffers,
                self._variants,
                self._counts,
                self._post,
                self._opened,
                self._failed,
            )
        except (OSError, RuntimeError) as error:
            # There can be no more descriptors, or threads.
            self._tell_lost(str(error))

    def _opened(self, connection: Connection) -> None:
        self.connection, self._opening = connection, None
        self._probe_began_s, self._next_probe_s = None, 0.0

    def _failed(self, connection: Connection, why: str) -> None:
        if connection is self._opening:
            self._opening = None
            self._tell_lost(why)
        elif connection is self.connection:
            self._wrong = why

    def _tell_lost(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            text = "the shared tier %s does not answer; kvring uses its local store alone: %s"
            warn(_logger, text, self._options.name, why)

    def _probe(self, connection: Connection, now_s: float) -> str:
        """Ask for a key that all nodes store: some adapters fail without a word."""
        self._next_probe_s = now_s + _LATE_PROBE_PAUSE_S
        if self._probe_began_s is not None:
            is_lost = now_s - self._probe_began_s > _LOST_AFTER_S
            return f"it has not answered for {_LOST_AFTER_S:g} s" if is_lost else ""
        self._probe_began_s = now_s

        def ask(*, was_stored: bool) -> None:
            # One that nobody stores, besides: LMCache's `s3` knows by heart what it has found.
            unknown = replace(_PROBE, chunk_hash=os.urandom(32))
            answer = partial(answered, was_stored=was_stored)
            connection.lookup([_PROBE, unknown], {}, answer)

        def answered(found: list[Sidecar | None], *, was_stored: bool) -> None:
            if found[0]:
                self._note_answer(now_s)
            elif was_stored:
                self._wrong = "what was stored there is not found"
            elif (probe := self._buffers.take(_PROBE_BYTES)) is None:
                # It has answered; there is no room to store the key.
                self._note_answer(now_s)
            else:
                probe.raw_data.zero_()
                connection.store([_PROBE], [0], [probe], partial(stored, probe))

        def stored(probe: TensorMemoryObj, is_stored: bool) -> None:
            self._buffers.give_back([probe])
            if is_stored:
                ask(was_stored=True)
            else:
                self._wrong = connection.last_error() or "nothing can be stored there"

        ask(was_stored=False)
        return ""

    def _note_answer(self, began_s: float) -> None:
        now_s = time.monotonic()
        self._probe_began_s = None
        asked_again_s = self._doubted_s + self._pause_s
        in_time = now_s - began_s <= self._options.limits.lookup_deadline_s
        self.is_answering = in_time and now_s >= asked_again_s
        pause_s = _PROBE_PAUSE_S if self.is_answering else _LATE_PROBE_PAUSE_S
        self._next_probe_s = max(now_s + pause_s, asked_again_s)
        if self.is_answering and self._has_told:
            self._has_told = False
            warn(_logger, "the shared tier %s answers again", self._options.name)
