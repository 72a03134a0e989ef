"""What is found after power loss, compared with what had been acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.acknowledged import (
    Step,
    answered_batches,
    durable_at_once,
    possible_versions,
)
from tools.vm.cut_machine import GuestLine
from tools.vm.guest.power_loss import KEYS, LASTING_KEYS

# What `best_effort` may lose, where a flush takes less than a second.
_BOUND_S = 2.0


@dataclass
class Row:
    """What all cuts of a case came to."""

    name: str
    is_control: bool
    kills: int = 0
    cuts: int = 0
    batches: int = 0
    acknowledged: int = 0
    promised: int = 0
    lost_within: int = 0
    oldest_lost_s: float = 0.0
    lost_beyond: int = 0
    wrong: int = 0
    failed_opens: int = 0
    longest_flush_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def is_as_promised(self) -> bool:
        """Whether nothing else than what may be lost is; of the control, whether it is caught."""
        is_clean = not (self.lost_beyond or self.wrong or self.failed_opens)
        return is_clean != self.is_control

    def summary(self) -> str:
        """Return a line on it."""
        return (
            f"{self.name}: {self.cuts} cuts, {self.promised} of {self.acknowledged} chunks "
            f"promised, lost {self.lost_within} within the bound and {self.lost_beyond} beyond, "
            f"{self.wrong} wrong, {self.failed_opens} failed opens"
        )


@dataclass(frozen=True)
class Cut:
    """A drive as it is found after power loss."""

    row: Row
    title: str
    told: list[GuestLine]
    is_persistent: bool
    image: Path

    def judge(self, failure: str | None, found: list[int | str | None]) -> bool:
        """Compare what the guest found with what was acknowledged; return whether it is allowed."""
        row = self.row
        faults = len(row.faults)
        row.cuts += 1
        answered = answered_batches(self.told)
        row.batches += len(answered)
        if failure is not None:
            row.failed_opens += 1
            row.faults.append(f"{self.title}: {failure}")
            return False
        now_ms = max(line.at_ms for line in self.told)
        flush_s = max((one.version / 1000 for one in self.told if one.verb == "time"), default=0.0)
        row.longest_flush_s = max(row.longest_flush_s, flush_s)
        # A flush that takes longer than a second is followed by a pause as long as it was.
        bound_s = _BOUND_S if flush_s < 1.0 else 3 * flush_s

        def is_acknowledged(step: Step) -> bool:
            return step.done is not None

        def is_past_the_bound(step: Step) -> bool:
            return step.done is not None and now_ms - self.told[step.done].at_ms > bound_s * 1000

        if self.is_persistent:
            promised = acknowledged = durable_at_once(self.told, answered)
        else:
            promised, acknowledged = is_past_the_bound, is_acknowledged
        allowed = possible_versions(self.told, KEYS, answered, promised)
        expected = possible_versions(self.told, KEYS, answered, acknowledged)
        if not self.is_persistent:
            # The extent of a chunk is reused as soon as another one of its key is acknowledged.
            allowed = [one if len(one) == 1 else one | {None} for one in allowed]
        row.acknowledged += sum(None not in one for one in expected[:LASTING_KEYS])
        row.promised += sum(None not in one for one in allowed[:LASTING_KEYS])
        last_ms = self._last_answers(answered)
        for number, version in enumerate(found):
            is_evicted = version is None and number >= LASTING_KEYS
            if isinstance(version, str):
                row.wrong += 1
            elif version in expected[number] or is_evicted:
                continue
            elif version in allowed[number]:
                age_s = (now_ms - last_ms[number]) / 1000
                row.lost_within += 1
                row.oldest_lost_s = max(row.oldest_lost_s, age_s)
                continue
            else:
                row.lost_beyond += 1
            row.faults.append(
                f"{self.title}: key {number} is {version}, possible are "
                f"{sorted(allowed[number], key=str)}, last acknowledged "
                f"{(now_ms - last_ms[number]) / 1000:.1f} s before, bound {bound_s:.1f} s"
            )
        return len(row.faults) == faults

    def _last_answers(self, answered: dict[int, int]) -> list[int]:
        """Return by key when the last batch with it was acknowledged; 0: none was."""
        last_ms = [0] * KEYS
        for line in self.told:
            if line.verb in {"set", "delete"} and line.version in answered:
                for number in line.numbers:
                    at_ms = self.told[answered[line.version]].at_ms
                    last_ms[number] = max(last_ms[number], at_ms)
        return last_ms
