"""Chunks that kvring missed, and takes from the primary tier once another tier had them.

vLLM 0.33.0 loads a chunk from the first tier that has it, and gives it to no tier before that one.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, TierFilter
from vllm.v1.kv_offload.tiering.base import ParentManager

__all__ = ["WantedChunks"]

_logger = logging.getLogger(__name__)

# Lookups in vain in a step, 2 us each, so that none takes long.
_MOST_MISSES: Final = 256

# Past it the oldest keys are left out.
_MOST_WANTED: Final = 1 << 16


@dataclass(slots=True)
class _Request:
    context: ReqContext
    # The same request with a filter that no tier passes: vLLM then asks the primary tier alone,
    # which no filter applies to. Under another ID its metrics would count these lookups.
    primary_only: ReqContext
    keys: set[OffloadKey] = field(default_factory=set)


class WantedChunks:
    """The keys that running requests asked for and kvring did not have.

    A key leaves when it is stored, when its request ends, or when its chunk is ready.

    After `set_epoch` nothing is wanted any more: vLLM's tiers name chunks without an epoch, so what
    they have may be KV of any weights that the engine had. Nor does the first epoch change that
    when it returns, as they have what was computed meanwhile.
    """

    def __init__(self, epoch: Callable[[], int]) -> None:
        """Want nothing.

        Args:
            epoch: Returns that of the store; 0 for the first one.
        """
        self._epoch = epoch
        self._has_other_epochs = False
        self._requests: dict[str, _Request] = {}
        # Each key with the last request that asked for it and the step of the last lookup, the
        # oldest lookup first.
        self._wanted: OrderedDict[OffloadKey, tuple[_Request, int]] = OrderedDict()
        self._step = 0

    def __len__(self) -> int:
        """Return the number of wanted keys."""
        return len(self._wanted)

    def add(self, key: OffloadKey, context: ReqContext) -> None:
        """Note a miss. Whoever notes one calls `end_request()` later."""
        if self._refuse_other_epochs():
            return
        self.discard(key)
        request = self._requests.get(context.req_id)
        if request is None:
            primary_only = ReqContext(context.req_id, load_tier_filter=TierFilter())
            request = self._requests[context.req_id] = _Request(context, primary_only)
        request.keys.add(key)
        self._wanted[key] = (request, self._step)
        if len(self._wanted) > _MOST_WANTED:
            self.discard(next(iter(self._wanted)))

    def discard(self, key: OffloadKey) -> None:
        """Forget a key, if it is wanted."""
        request, _ = self._wanted.pop(key, (None, 0))
        if request is not None:
            request.keys.discard(key)

    def end_request(self, req_id: str) -> None:
        """Forget what a request wanted."""
        request = self._requests.pop(req_id, None)
        if request is not None:
            for key in request.keys:
                del self._wanted[key]

    def take_ready(
        self, parent: ParentManager, most: int
    ) -> list[tuple[ReqContext, list[OffloadKey]]]:
        """End a step, and take the keys whose chunks the primary tier has.

        They are ready until the caller returns to vLLM.

        Args:
            parent: vLLM's manager.
            most: How many keys to take; the others stay wanted.

        Returns:
            Requests, and keys of each.
        """
        if self._refuse_other_epochs():
            return []
        ready: dict[str, tuple[ReqContext, list[OffloadKey]]] = {}
        misses = 0
        while self._wanted and most > 0 and misses < _MOST_MISSES:
            key, (request, step) = next(iter(self._wanted.items()))
            # vLLM missed the later ones in this step, in the primary tier as well.
            if step == self._step:
                break
            if parent.lookup(key, request.primary_only) is LookupResult.HIT:
                self.discard(key)
                context = request.context
                ready.setdefault(context.req_id, (context, []))[1].append(key)
                most -= 1
            else:
                misses += 1
                self._wanted[key] = (request, self._step)
                self._wanted.move_to_end(key)
        self._step += 1
        return list(ready.values())

    def _refuse_other_epochs(self) -> bool:
        if not self._has_other_epochs and self._epoch():
            self._has_other_epochs = True
            self._requests.clear()
            self._wanted.clear()
            _logger.warning(
                "nothing is promoted until the engine restarts: an epoch was set, and vLLM's other "
                "tiers may have KV of other weights; empty them before the restart"
            )
        return self._has_other_epochs
