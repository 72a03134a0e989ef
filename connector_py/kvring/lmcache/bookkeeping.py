"""LMCache's books of what is stored: its orders of eviction, its coordinator's directory."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from lmcache.v1.distributed.api import EncodedObjectKey

from kvring._native import ClosedError, ObjectTasks

__all__ = ["Bookkeeping"]

_logger = logging.getLogger(__name__)

# LMCache asks for keys to evict once a second.
_PAUSE_S: Final = 0.1

# A server without L2 eviction registers no listener; its coordinator is told all the same.
_LATEST_BEGIN_S: Final = 5.0

# Keys that are told at a time: Python makes about 400,000 of them in a second.
_PAGE: Final = 4096

_Notify = Callable[[list[Any]], None]
_NotifySizes = Callable[[list[Any], list[int]], None]


class Bookkeeping:
    """Tells LMCache which keys are stored, used and gone, from a thread of its own.

    Keys that were stored at the start come first, the least recently used ones before all others.
    """

    def __init__(
        self, tasks: ObjectTasks, stored: _NotifySizes, used: _Notify, gone: _NotifySizes
    ) -> None:
        self._tasks = tasks
        self._stored = stored
        self._used = used
        self._gone = gone
        # One thread tells at a time, so that LMCache hears of changes in their order.
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._end = threading.Event()
        self._watches = False
        self._has_recovered = False
        self._newly_used: deque[list[Any]] = deque()
        self._thread = threading.Thread(target=self._run, daemon=True, name="kvring-bookkeeping")
        self._thread.start()

    def begin(self) -> None:
        """Begin now: who is to listen does."""
        self._begun.set()

    def add_listener(self, listener: Any, add: Callable[[Any], None]) -> None:
        """Let a listener hear all from now on; one that comes late first hears what is stored."""
        with self._lock:
            add(listener)
            if self._watches:
                self._seed(listener)
        self.begin()

    def note_used(self, keys: list[Any]) -> None:
        """Tell soon that keys were used."""
        if keys:
            self._newly_used.append(keys)

    def tell(self) -> None:
        """Tell all there is to tell."""
        while self._tell_page():
            pass

    def tell_absent(self, keys: list[Any]) -> None:
        """Tell that keys are gone that were not stored: LMCache may have thought so."""
        if keys:
            with self._lock:
                _notify(self._gone, keys, [0] * len(keys))

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._begun.set()
        self._thread.join()

    def _run(self) -> None:
        self._begun.wait(_LATEST_BEGIN_S)
        self._begun.set()
        while not self._end.is_set():
            try:
                self.tell()
            except ClosedError:
                return
            except Exception:  # noqa: BLE001 - no fault ends this thread
                _log_fault()
            self._end.wait(_PAUSE_S)

    def _tell_page(self) -> bool:
        """Tell some changes, and say whether there may be more."""
        with self._lock:
            if not self._begun.is_set() or self._end.is_set():
                return False
            if not self._watches:
                self._tasks.watch_keys()
                self._watches = True
            if not self._has_recovered:
                names, sizes = self._tasks.take_stored_keys(_PAGE)
                self._has_recovered = not names
                # LMCache's orders of eviction take the last one of a batch for the oldest.
                keys, sizes = self._tasks.object_keys(names[::-1], sizes[::-1])
                if keys:
                    _notify(self._stored, keys, sizes)
                if not self._has_recovered:
                    return True
            runs = self._tasks.take_key_events(_PAGE)
            for change, names, lengths in runs:
                keys, sizes = self._tasks.object_keys(names, lengths)
                if not keys:
                    continue
                if change == "stored":
                    _notify(self._stored, keys, sizes)
                elif change == "gone":
                    _notify(self._gone, keys, sizes)
                else:
                    _notify(self._used, keys)
            while self._newly_used:
                _notify(self._used, self._newly_used.popleft())
            return bool(runs)

    def _seed(self, listener: Any) -> None:
        """Tell one listener what is stored, in no order."""
        cursor: int | None = 0
        while cursor is not None:
            listed, cursor = self._tasks.list_keys(None, cursor, _PAGE)
            keys = [EncodedObjectKey(*fields).to_object_key() for *fields, _ in listed]
            if keys:
                listener.on_l2_keys_stored(keys, [size_bytes for *_, size_bytes in listed])


def _notify(tell: Callable[..., None], *news: list[Any]) -> None:
    """Tell what was taken; what a listener raises costs nobody the news behind it."""
    try:
        tell(*news)
    except Exception:  # noqa: BLE001 - listeners are the application's
        _log_fault()


def _log_fault() -> None:
    # A handler of the application may raise as well.
    with suppress(Exception):
        _logger.exception("a listener failed, so LMCache's books of what is stored may be wrong")
