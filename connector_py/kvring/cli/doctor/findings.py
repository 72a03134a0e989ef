"""What `kvring doctor` finds."""

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Finding", "Level"]


class Level(IntEnum):
    """How much a finding matters, the worst last."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `what` says how it is, `remedy` what to do about it; empty where there is nothing to do.
    """

    level: Level
    check: str
    what: str
    remedy: str = ""
