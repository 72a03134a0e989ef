"""A connection to a shared tier: made anew where it was lost, and asked whether it answers."""

import logging
import math
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.memory_management import TensorMemoryObj

from kvring.lmcache.shared_buffers import Buffers
from kvring.lmcache.shared_connection import Connection
from kvring.lmcache.shared_options import SharedOptions

__all__ = ["Link"]

_logger = logging.getLogger(__name__)

_RECONNECT_PAUSE_S: Final = 2.0
_CONNECT_DEADLINE_S: Final = 5.0
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
        counts: Counter[str],
        post: Callable[[Callable[[], None]], bool],
        poll: select.poll,
    ) -> None:
        """Have no connection yet.

        Args:
            options: What is connected to.
            buffers: Where what was under way goes back to.
            counts: Counts under "lost" how often a connection was lost.
            post: Has the link's thread do something; says whether it still will.
            poll: What that thread waits with.
        """
        self.connection: Connection | None = None
        # Whether it answered the last question in time.
        self.is_answering = False
        self._options = options
        self._buffers = buffers
        self._counts = counts
        self._post = post
        self._poll = poll
        # A thread makes a connection.
        self._is_busy = False
        # Connections that threads end.
        self._ending = 0
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
            if now_s - self.connection.waits_since_s() > longest_s:
                return f"a load or store has not been answered for {longest_s:g} s"
        if now_s < self.next_s():
            return ""
        if self.connection is not None:
            return self._probe(self.connection, now_s)
        self._next_connect_s = now_s + _RECONNECT_PAUSE_S
        if not self._is_busy and self._ending < _MOST_ENDING:
            self._is_busy = True
            try:
                threading.Thread(target=self._connect, daemon=True).start()
            except RuntimeError as error:
                # There can be no more threads.
                self._is_busy = False
                self._tell_lost(str(error))
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
        if connection is None:
            return
        if not is_over:
            self._counts["lost"] += 1
            self._tell_lost(why)
        for descriptor in connection.event_fds:
            self._poll.unregister(descriptor)
        self._ending += 1
        self._next_connect_s = time.monotonic() + _RECONNECT_PAUSE_S
        # It may wait for those that it still asks, and for ever.
        ending = threading.Thread(target=self._end, args=(connection,), daemon=True)
        try:
            ending.start()
        except RuntimeError:
            self._end(connection)
        else:
            if is_over:
                ending.join(_LOST_AFTER_S)

    def _end(self, connection: Connection) -> None:
        objects, is_unused = connection.close()
        if is_unused or not objects:
            self._buffers.give_back(objects)
        else:
            self._buffers.abandon(objects)
            _logger.warning(
                "the shared tier %s may still use %d buffers: they are lost to shared_buffer until "
                "a restart",
                self._options.name,
                len(objects),
            )
        self._ending -= 1

    def _connect(self) -> None:
        """Connect, in a thread of its own: it may wait for the network."""
        try:
            if self._options.address is not None:
                # LMCache's `resp` (0.5.6, 0.5.7rc2) closes a socket twice that it cannot connect,
                # and another thread may have got its number in between. It knows IPv4 only.
                with socket.socket(socket.AF_INET) as tried:
                    tried.settimeout(_CONNECT_DEADLINE_S)
                    tried.connect(self._options.address)
            connection = Connection(self._options.adapter, self._options.identity)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            self._is_busy = False
            self._post(partial(self._tell_lost, _text_of(error)))
            return
        if not self._post(partial(self._take, connection)):
            connection.close()

    def _take(self, connection: Connection) -> None:
        self.connection, self._is_busy = connection, False
        for descriptor in connection.event_fds:
            self._poll.register(descriptor, select.POLLIN)
        self._probe_began_s, self._next_probe_s = None, 0.0

    def _tell_lost(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            _logger.warning(
                "the shared tier %s does not answer; kvring goes on alone until it does: %s",
                self._options.name,
                why,
            )

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

        def answered(found: list[bool], *, was_stored: bool) -> None:
            if found[0]:
                connection.unlock([_PROBE])
                self._note_answer(now_s)
            elif was_stored:
                self._wrong = "what was stored there is not found"
            elif (probe := self._buffers.take(_PROBE_BYTES)) is None:
                # It has answered; there is no room to store the key.
                self._note_answer(now_s)
            else:
                probe.raw_data.zero_()
                try:
                    connection.store([_PROBE], [probe], partial(stored, probe))
                except BaseException:
                    self._buffers.give_back([probe])
                    raise

        def stored(probe: TensorMemoryObj, is_stored: bool) -> None:
            self._buffers.give_back([probe])
            if is_stored:
                ask(was_stored=True)
            else:
                self._wrong = "nothing can be stored there"

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
            _logger.warning("the shared tier %s answers again", self._options.name)


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
