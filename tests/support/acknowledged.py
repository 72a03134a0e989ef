"""What a store may hold after power loss, by what it has acknowledged."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# "set", "delete" or "done", the version that a batch writes, numbers of its keys, and one more.
Line = tuple[str, int, list[int], int]


class Step(NamedTuple):
    """A batch as one of its keys sees it; lines are counted from the first one."""

    result: int | None
    """The version that the key has then; None: it is deleted."""
    begun: int
    done: int | None


def answered_batches(told: Sequence[Line]) -> dict[int, int]:
    """Return in which line each batch was acknowledged, by version."""
    return {line[1]: at for at, line in enumerate(told) if line[0] == "done"}


def durable_at_once(told: Sequence[Line], answered: Mapping[int, int]) -> Callable[[Step], bool]:
    """Return what `persistent` promises of a step.

    A DELETE is durable with the next SET that was begun after its answer, and is answered.
    """
    last_set = max(
        (at for at, line in enumerate(told) if line[0] == "set" and line[1] in answered),
        default=-1,
    )

    def is_durable(step: Step) -> bool:
        return step.done is not None and (step.result is not None or step.done < last_set)

    return is_durable


def possible_versions(
    told: Sequence[Line],
    keys: int,
    answered: Mapping[int, int],
    is_durable: Callable[[Step], bool],
) -> list[set[int | None]]:
    """Return by key which versions it may have: the last durable one, or one of a later batch."""
    steps: list[list[Step]] = [[] for _ in range(keys)]
    for at, (verb, version, numbers, _) in enumerate(told):
        if verb in {"set", "delete"}:
            for number in numbers:
                result = version if verb == "set" else None
                steps[number].append(Step(result, at, answered.get(version)))
    possible: list[set[int | None]] = []
    for own in steps:
        durable = [at for at, step in enumerate(own) if is_durable(step)]
        before: set[int | None] = set() if durable else {None}
        begin = durable[-1] if durable else 0
        possible.append(before | {step.result for step in own[begin:]})
    return possible
