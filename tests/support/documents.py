"""Commands of a page of the documentation, and the output that it promises."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Step", "matches", "steps"]

_PART = re.compile(
    r"^/// tab \| (?P<tab>[^\n]+)$|^(?P<end>///)$|^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


class Step(NamedTuple):
    """A block of commands."""

    script: str
    # What it prints, with `...` for what varies; None where the page shows nothing.
    expected: str | None


def steps(page: Path, tab: str | None = None) -> list[Step]:
    """Return the `bash` blocks outside all tabs and in the named one, in the page's order.

    The blocks of one tab run in one shell: later ones use what earlier ones define. The `text`
    block that follows a `bash` block is its expected output.

    Raises:
        LookupError: The page has no such tab.
    """
    found: list[Step] = []
    tabs = set()
    for language, text, of_tab in _blocks(page):
        tabs.add(of_tab)
        if of_tab not in (None, tab):
            continue
        if language == "bash":
            found.append(Step(text, None))
        elif language == "text" and found and found[-1].expected is None:
            found[-1] = found[-1]._replace(expected=text)
    if tab not in tabs:
        raise LookupError(f"{page} has no tab {tab}")
    return found


def matches(expected: str, output: str) -> bool:
    """Tell whether an output is the expected one; spaces do not count, and `...` is any text."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in expected.split("...")]
    return re.fullmatch(rf"\s*{r'.*?'.join(_spaced(parts))}\s*", output, re.S) is not None


def _spaced(parts: list[str]) -> Iterator[str]:
    for part in parts:
        yield rf"\s*{part}\s*"


def _blocks(page: Path) -> Iterator[tuple[str, str, str | None]]:
    tab = None
    for part in _PART.finditer(page.read_text(encoding="utf-8")):
        if part["language"]:
            yield part["language"], part["text"], tab
        else:
            tab = part["tab"]
