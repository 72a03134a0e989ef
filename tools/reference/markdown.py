"""Markdown of texts that terminals and editors show as well."""

import re
from collections.abc import Iterable, Sequence

__all__ = ["linked", "sections", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(cells)}|\n" for cells in lines)


def sections(title: str, *parts: str) -> str:
    """Return a page of parts with an empty line between them."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


def linked(text: str) -> str:
    """Make paths of pages links, and flags code."""
    text = re.sub(r"(?<![\w`-])(--[a-z][\w-]*)(?!`)", r"`\1`", text)
    return re.sub(
        r"(?<!\]\()\bdocs/([\w-]+)/([\w-]+\.md)",
        lambda found: f"[{found[2]}](../{found[1]}/{found[2]})".replace("../reference/", ""),
        text,
    )
