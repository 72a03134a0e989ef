"""The weights of models, in a process that outlives the engines which load them."""

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from kvring.logs import LogLimit, warn
from kvring.weights import look_at_weights

__all__ = ["KnownWeights"]

_logger: Final = logging.getLogger(__name__)

_LOOK_S: Final = 5.0


class _Known(NamedTuple):
    epoch: int
    # The fingerprint by times; None until the files could be looked at.
    seen: str | None
    # Engines may have the weights that were there before, or those that are there now.
    have_changed: bool = False


class KnownWeights:
    """Looks at the files of each model from its first key on, until they change."""

    def __init__(self, epoch: Callable[[], int]) -> None:
        """Know none yet.

        Args:
            epoch: Returns that of the store. When one begins, engines have what is there then.
        """
        self.epoch = epoch
        self._lock = threading.Lock()
        self._models: dict[str, _Known] = {}
        # By model and `seen`.
        self._portable: dict[tuple[str, str], str] = {}
        self._log_limit = LogLimit()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, model: str, *, is_portable: bool = False) -> str | None:
        """Return the fingerprint of a model's weights; None if nobody knows which an engine has."""
        known = self._models.get(model)
        if known is None or known.epoch != self.epoch():
            known = self._begin(model)
        if known.seen is None or known.have_changed:
            return None
        return self._portable_of(model, known, known.seen) if is_portable else known.seen

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._is_over.set()

    def _begin(self, model: str) -> _Known:
        with self._lock:
            epoch = self.epoch()
            known = self._models.get(model)
            if known is None or known.epoch != epoch:
                known = self._models[model] = _Known(epoch, self._look(model))
            if self._thread is None:
                # A look may hang, as a file system does: nobody waits for it.
                self._thread = threading.Thread(
                    target=self._run, daemon=True, name="kvring-weights"
                )
                self._thread.start()
        return known

    def _portable_of(self, model: str, known: _Known, seen: str) -> str | None:
        portable = self._portable.get((model, seen))
        if portable is None:
            portable = self._look(model, is_portable=True)
            if not self._is_still(model, known):
                return None
            if portable is not None:
                self._portable[model, seen] = portable
        return portable

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            for model, known in list(self._models.items()):
                self._is_still(model, known)

    def _is_still(self, model: str, known: _Known) -> bool:
        """Look again; say whether the weights are those that were seen, and note it if not."""
        seen = self._look(model)
        if seen in (None, known.seen):
            return seen is not None
        with self._lock:
            if known.have_changed or self._models[model] is not known:
                return False
            is_first = known.seen is None
            self._models[model] = known._replace(
                seen=seen if is_first else known.seen, have_changed=not is_first
            )
        if not is_first:
            warn(
                _logger,
                "the weights of %s have changed, and engines may have loaded either: nothing of it "
                "is found or stored until this process starts anew with its engines, or "
                "kvring.set_epoch() begins an epoch",
                model,
            )
        return False

    def _look(self, model: str, *, is_portable: bool = False) -> str | None:
        try:
            return look_at_weights(model, is_portable=is_portable)
        except OSError as error:
            if self._log_limit.is_due(model):
                warn(_logger, "the weights of %s cannot be looked at: %s", model, error)
            return None
