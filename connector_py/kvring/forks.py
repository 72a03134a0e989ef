"""What a fork closes: its copies of connections would keep them open for those at the other end."""

import os
import weakref
from typing import Protocol

__all__ = ["close_in_forks"]


class _Forked(Protocol):
    def close_in_fork(self) -> None: ...


# Those of this process.
_all: "weakref.WeakSet[_Forked]" = weakref.WeakSet()


def close_in_forks(one: _Forked) -> None:
    """Have each fork of this process call `close_in_fork()`, as long as the object lives.

    It may take no lock: another thread may have held it at that moment.
    """
    _all.add(one)


def _close_all() -> None:
    for one in list(_all):
        one.close_in_fork()


os.register_at_fork(after_in_child=_close_all)
