"""Why goals are missed: what `reasons.md` says, goal by goal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benches.compare.goals import MISSED, Goal

REASONS = Path(__file__).with_name("reasons.md")
UNEXPLAINED = "No profile was taken yet."


def read_reasons(text: str) -> dict[str, str]:
    """Return the explanations by goal. A heading names goals, with semicolons between."""
    _, *entries = ("\n" + text).split("\n### ")
    pairs = (entry.partition("\n")[::2] for entry in entries)
    return {what.strip(): why.strip() for whats, why in pairs for what in whats.split(";")}


def reason_lines(goals: list[Goal], reasons: dict[str, str]) -> Iterator[str]:
    """Return the explanations of what is missed, as Markdown. Goals that say the same share one."""
    missed = dict.fromkeys(goal.what for goal in goals if goal.verdict == MISSED)
    if not missed:
        return
    yield "\n**Why goals are missed**\n"
    shared: dict[str, list[str]] = {}
    for what in missed:
        shared.setdefault(reasons.get(what, UNEXPLAINED), []).append(what)
    for why, whats in shared.items():
        yield f"- {'; '.join(whats)}: {why}"
