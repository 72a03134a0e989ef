"""Work that one thread is given by others, and waits for with poll(2)."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

__all__ = ["Inbox"]


class Inbox:
    """A queue of calls, and a descriptor that is readable when there may be some."""

    def __init__(self) -> None:
        """Begin empty.

        Raises:
            OSError: The process has no descriptor left.
        """
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self.is_closed = False
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Not in close(): a thread that still posts would write into another file.
        weakref.finalize(self, os.close, self.descriptor)

    def __len__(self) -> int:
        """Return how many calls wait."""
        return len(self._calls)

    def post(self, call: Callable[[], None]) -> bool:
        """Add a call; return whether it will be made."""
        with self._lock:
            if self.is_closed:
                return False
            self._calls.append(call)
        os.eventfd_write(self.descriptor, 1)
        return True

    def close(self) -> None:
        """Take no more, and wake the thread. Idempotent."""
        with self._lock:
            self.is_closed = True
        os.eventfd_write(self.descriptor, 1)

    def work_off(self) -> None:
        """Make the calls that wait, in their order."""
        while self._calls:
            self._calls.popleft()()
