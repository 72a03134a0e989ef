"""The one JSON file of all that was measured, part by part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benches.compare.samples import Samples
from benches.compare.sections import TITLES
from benches.compare.session import SectionResult

Document = dict[str, Any]


def read(path: Path) -> Document:
    """Return what the file holds; an empty document where there is none."""
    if not path.exists():
        return {"sections": {}}
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    return document


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
    unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
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
