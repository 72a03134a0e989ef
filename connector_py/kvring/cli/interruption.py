"""Signals that end a command early, without cutting off what must be done at its end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Whether a signal has asked to stop, and what it shall call."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._stop: Callable[[], None] | None = None

    def call(self, stop: Callable[[], None]) -> None:
        """Have `stop` called at the signal, or now if it has come already."""
        self._stop = stop
        if self.signal is not None:
            stop()

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take note of a signal."""
        self.signal = number
        if self._stop is not None:
            self._stop()


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Have SIGINT, SIGTERM and SIGHUP only ask to stop meanwhile; nothing is thrown anywhere."""
    asked = Interruption()
    before: dict[int, Any] = {}
    try:
        for number in _SIGNALS:
            # nohup and the like have had it ignored: it stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, asked.handle)
        yield asked
    finally:
        for taken, handler in before.items():
            signal.signal(taken, handler)
