"""What lookups found where, until their keys are unlocked."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from lmcache.v1.distributed.api import ObjectKey

from kvring.shared_tier.sidecars import Sidecar

__all__ = ["Finds"]

# Whoever has not unlocked a key by then never will: that of the store's own locks.
_LONGEST_S: Final = 600.0
# Finds that are over are looked for whenever there are so many keys.
_FEW: Final = 4096


class _Find(NamedTuple):
    is_over_s: float
    # None: in the store.
    sidecar: Sidecar | None


class Finds:
    """By key, the finds of lookups that are not unlocked, the oldest first. For one thread."""

    def __init__(self) -> None:
        """Begin empty."""
        self._finds: dict[ObjectKey, deque[_Find]] = {}
        self._many = _FEW

    def __len__(self) -> int:
        """Return how many keys have finds, those that are over included."""
        return len(self._finds)

    def note(self, found: Iterable[tuple[ObjectKey, Sidecar | None]]) -> None:
        """Note that a lookup found keys: in the store, or a sidecar of it in the shared tier."""
        now_s = time.monotonic()
        for key, sidecar in found:
            finds = self._finds.setdefault(key, deque())
            _drop_old(finds, now_s)
            finds.append(_Find(now_s + _LONGEST_S, sidecar))
        if len(self._finds) > self._many:
            for key, finds in list(self._finds.items()):
                _drop_old(finds, now_s)
                if not finds:
                    del self._finds[key]
            self._many = max(2 * len(self._finds), _FEW)

    def newest(self, key: ObjectKey) -> Sidecar | None:
        """Return the sidecar of a key, or None if the last lookup found it in the store."""
        finds = self._finds.get(key)
        if not finds or finds[-1].is_over_s <= time.monotonic():
            return None
        return finds[-1].sidecar

    def unlock(self, key: ObjectKey) -> bool:
        """Forget the oldest find of a key; say whether the store may have it locked."""
        finds = self._finds.get(key)
        if finds is None:
            return True
        find = finds.popleft()
        if not finds:
            del self._finds[key]
        return find.sidecar is None


def _drop_old(finds: deque[_Find], now_s: float) -> None:
    while finds and finds[0].is_over_s <= now_s:
        finds.popleft()
