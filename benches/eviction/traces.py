"""Traces of others, as text that the simulator reads."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path


@dataclass(frozen=True)
class PublicTrace:
    """A trace that is looked for on this machine; benches/traces/README.md describes it."""

    name: str
    file_name: str


PUBLIC_TRACES = (
    PublicTrace("conversation", "conversation_trace.jsonl"),
    PublicTrace("synthetic", "synthetic_trace.jsonl"),
    PublicTrace("gmi", "gmi_trace.jsonl"),
)


class TraceError(Exception):
    """A trace cannot be read."""


def find(trace: PublicTrace, directory: Path) -> Path | None:
    """Return the trace's file, compressed or not, if it is there."""
    plain = directory / trace.file_name
    compressed = plain.with_suffix(".jsonl.xz")
    return next((path for path in (plain, compressed) if path.exists()), None)


def convert(source: Path, target: Path) -> None:
    """Write a trace as a line for each request: its blocks, numbered in the order they come in.

    A block is another one after other blocks, even where its hash is the same: gmi's are of the
    block alone.

    Args:
        source: Lines of JSON with `hash_ids`, perhaps compressed.
        target: Is overwritten.

    Raises:
        TraceError: It is not such a file.
    """
    target.write_text("".join(_lines(source)), encoding="utf-8")


def _lines(source: Path) -> Iterator[str]:
    numbers: dict[tuple[int, int], int] = {}
    opened = lzma.open if source.suffix == ".xz" else open
    with opened(source, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                hashes = [int(block) for block in json.loads(line)["hash_ids"]]
            except (ValueError, TypeError, KeyError) as error:
                raise TraceError(f"{source}, line {number}: {error!r}") from error
            blocks = accumulate(
                hashes,
                lambda before, block: numbers.setdefault((before, block), len(numbers)),
                initial=-1,
            )
            yield " ".join(map(str, islice(blocks, 1, None))) + "\n"
