"""What lookups found where, until their keys are unlocked."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from lmcache.v1.distributed.api import ObjectKey

from kvring.shared_tier.sidecars import Sidecar

__all__ = ["KeyLocks"]

# Whoever has not unlocked a key by then never will: that of the store's own locks.
_LONGEST_S: Final = 600.0
# Locks that are over are looked for whenever there are so many keys.
_FEW: Final = 4096


class _Lock(NamedTuple):
    is_over_s: float
    # None: in the store.
    sidecar: Sidecar | None


class KeyLocks:
    """By key, where lookups found it that are not unlocked, the oldest first. For one thread."""

    def __init__(self) -> None:
        """Begin empty."""
        self._locks: dict[ObjectKey, deque[_Lock]] = {}
        self._many = _FEW

    def __len__(self) -> int:
        """Return how many keys are locked, those whose locks are over included."""
        return len(self._locks)

    def note(self, found: Iterable[tuple[ObjectKey, Sidecar | None]]) -> None:
        """Note that a lookup found keys: in the store, or a sidecar of it in the shared tier."""
        now_s = time.monotonic()
        for key, sidecar in found:
            locks = self._locks.setdefault(key, deque())
            _drop_old(locks, now_s)
            locks.append(_Lock(now_s + _LONGEST_S, sidecar))
        if len(self._locks) > self._many:
            for key, locks in list(self._locks.items()):
                _drop_old(locks, now_s)
                if not locks:
                    del self._locks[key]
            self._many = max(2 * len(self._locks), _FEW)

    def newest(self, key: ObjectKey) -> Sidecar | None:
        """Return the sidecar of a key, or None if the last lookup found it in the store."""
        locks = self._locks.get(key)
        if not locks or locks[-1].is_over_s <= time.monotonic():
            return None
        return locks[-1].sidecar

    def unlock(self, key: ObjectKey) -> bool:
        """Forget the oldest lock of a key; say whether the store may have it locked."""
        locks = self._locks.get(key)
        if locks is None:
            return True
        lock = locks.popleft()
        if not locks:
            del self._locks[key]
        return lock.sidecar is None


def _drop_old(locks: deque[_Lock], now_s: float) -> None:
    while locks and locks[0].is_over_s <= now_s:
        locks.popleft()
