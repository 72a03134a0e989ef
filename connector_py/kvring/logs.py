"""Where kvring's messages go if nobody has said so."""

import logging
import os
import sys
import time
from collections.abc import Hashable
from contextlib import suppress
from typing import Final

__all__ = ["LogLimit", "logger", "warn"]

_LOGGER: Final = logging.getLogger("kvring")

# Where a program has its level from.
_LEVELS: Final = (("lmcache", "LMCACHE_LOG_LEVEL"), ("vllm", "VLLM_LOGGING_LEVEL"))

_PAUSE_S: Final = 60.0

_FORMAT: Final = "[%(asctime)s] %(levelname)s %(name)s: %(message)s"


class _OwnHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the standard error output, with time, level and name."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))


def logger() -> logging.Logger:
    """Return the logger for kvring's messages, which begin with the path of their store.

    Python shows warnings bare where nobody has configured a logger, and nothing below them. LMCache
    and vLLM configure their own loggers alone. So this one gets a handler and, under these, their
    level: LMCACHE_LOG_LEVEL or VLLM_LOGGING_LEVEL, or INFO. It gives both up for a configuration
    that comes later.
    """
    own = [handler for handler in _LOGGER.handlers if isinstance(handler, _OwnHandler)]
    if not own and not _LOGGER.hasHandlers():
        _LOGGER.addHandler(_OwnHandler())
        if _LOGGER.level == logging.NOTSET:
            _LOGGER.setLevel(_level())
    elif own and (len(_LOGGER.handlers) > len(own) or logging.getLogger().handlers):
        for handler in own:
            _LOGGER.removeHandler(handler)
        if _LOGGER.level == _level():
            _LOGGER.setLevel(logging.NOTSET)
    return _LOGGER


class LogLimit:
    """Lets each kind of message be logged once a minute."""

    def __init__(self) -> None:
        """Let the first of each kind through."""
        self._next_s: dict[Hashable, float] = {}

    def is_due(self, kind: Hashable) -> bool:
        """Say whether a message of this kind may be logged, and take note of it."""
        now_s = time.monotonic()
        if now_s < self._next_s.get(kind, 0.0):
            return False
        self._next_s[kind] = now_s + _PAUSE_S
        return True


def warn(logger: logging.Logger, text: str, *arguments: object) -> None:
    """Log a warning where nothing may be raised: handlers are the application's."""
    with suppress(Exception):
        logger.warning(text, *arguments)


def _level() -> int:
    variable = next((name for module, name in _LEVELS if module in sys.modules), None)
    if variable is None:
        return logging.NOTSET
    level = logging.getLevelName(os.environ.get(variable, "INFO").upper())
    return level if isinstance(level, int) else logging.INFO
