"""The one JSON file of all that was measured, part by part."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benches.compare.samples import Samples
from benches.compare.sections import TITLES
from benches.compare.session import SectionResult

Document = dict[str, Any]

# A file whose name ends so is packed.
PACKED = ".gz"


def read(*paths: Path) -> Document:
    """Return what the first of these files holds that is there; else an empty document."""
    for path in paths:
        if path.exists():
            content = path.read_bytes()
            is_packed = path.suffix == PACKED
            document: Document = json.loads(gzip.decompress(content) if is_packed else content)
            return document
    return {"sections": {}}


def merge(document: Document, name: str, result: SectionResult, context: dict[str, Any]) -> None:
    """Put a part in, instead of what was there before under this name.

    Args:
        document: Is changed.
        name: Of the part.
        result: What it came to.
        context: Machine, versions, settings and command of this very part.
    """
    entry = {
        **context,
        "device": result.device,
        "peers": result.peers,
        "notes": result.notes,
        "skipped": result.skipped,
        "commands": {**context["commands"], **result.commands},
        "samples": result.samples.to_json(),
    }
    parts = {**document.get("sections", {}), name: entry}
    document["sections"] = {one: parts[one] for one in TITLES if one in parts}


def write(document: Document, path: Path) -> None:
    """Write the document, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    content = f"{json.dumps(document, indent=1)}\n".encode()
    # The same document makes the same file.
    unfinished.write_bytes(gzip.compress(content, mtime=0) if path.suffix == PACKED else content)
    unfinished.replace(path)


def samples_by_section(document: Document) -> dict[str, Samples]:
    """Return the samples of each part."""
    return {
        name: Samples.from_json(entry["samples"]) for name, entry in document["sections"].items()
    }


def published_without(document: Document, page: Path) -> list[str]:
    """Return the parts that a page shows and the document does not have."""
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    shown = [name for name, title in TITLES.items() if f"## {title}" in lines]
    return [name for name in shown if name not in document["sections"]]
