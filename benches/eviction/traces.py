"""Traces of others, as text that the simulator reads."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PublicTrace:
    """A trace that is looked for on this machine."""

    name: str
    file_name: str
    about: str


PUBLIC_TRACES = (
    PublicTrace(
        "conversation",
        "conversation_trace.jsonl",
        "Mooncake's conversation trace (FAST '25), 59 minutes, blocks of 512 tokens",
    ),
    PublicTrace(
        "synthetic",
        "synthetic_trace.jsonl",
        "Mooncake's synthetic trace (FAST '25), 17 minutes, blocks of 512 tokens",
    ),
)


class TraceError(Exception):
    """A trace cannot be read."""


def find(trace: PublicTrace, directory: Path) -> Path | None:
    """Return the trace's file, compressed or not, if it is there."""
    plain = directory / trace.file_name
    compressed = plain.with_suffix(".jsonl.xz")
    return next((path for path in (plain, compressed) if path.exists()), None)


def convert(source: Path, target: Path) -> None:
    """Write a trace as a line for each request: the numbers of its blocks.

    Args:
        source: Lines of JSON with `hash_ids`, perhaps compressed.
        target: Is overwritten.

    Raises:
        TraceError: It is not such a file.
    """
    target.write_text("".join(_lines(source)), encoding="utf-8")


def _lines(source: Path) -> Iterator[str]:
    opened = lzma.open if source.suffix == ".xz" else open
    with opened(source, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                blocks = [int(block) for block in json.loads(line)["hash_ids"]]
            except (ValueError, TypeError, KeyError) as error:
                raise TraceError(f"{source}, line {number}: {error!r}") from error
            yield " ".join(map(str, blocks)) + "\n"
