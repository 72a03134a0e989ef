"""Doc comments of Rust sources."""

import re
from pathlib import Path
from typing import Final

__all__ = ["REPOSITORY", "doc_comments", "source"]

REPOSITORY: Final = Path(__file__).parents[2]

_DESCRIBED: Final = re.compile(
    r"((?:^ *///[^\n]*\n)+)(?:^ *#\[(?:[^\]]|\][^\n])*\]\n)*^ *(?:pub )?(\w+)(?=[:,({ ])", re.M
)


def source(path: str) -> str:
    """Return a source file."""
    return (REPOSITORY / path).read_text(encoding="utf-8")


def doc_comments(path: str, start: str, *, is_macro: bool = False) -> dict[str, str]:
    """Return the comments of the fields or variants of what begins with `start`, by name."""
    _, found, rest = source(path).partition(start)
    assert found, f"{path} has no {start!r}"
    end = re.search(r"^ *\$\(" if is_macro else r"^ *\}$", rest, re.M)
    assert end, f"{path}: {start!r} has no end"
    return {
        name: " ".join(re.sub(r"^ *///", "", comment, flags=re.M).split())
        for comment, name in _DESCRIBED.findall(rest[: end.start()])
    }
