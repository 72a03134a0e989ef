"""The pages of docs/reference, made of the code: option tables, help texts, docstrings, comments.

`python -m tools.reference` (`make reference`) writes them; tests/python/test_reference.py compares.
"""

from pathlib import Path
from typing import Final

from tools.reference import commands, errors, metrics, options, python_api

__all__ = ["PAGES", "make_pages"]

PAGES: Final = Path(__file__).parents[2] / "docs" / "reference"
_NOTE: Final = "<!-- Made by `make reference` from the code: edit that. -->\n"


def make_pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    pages = {
        "options.md": options.page(),
        "commands.md": commands.page(),
        "metrics.md": metrics.page(),
        "python.md": python_api.page(),
        "errors.md": errors.page(),
    }
    return {name: f"{_NOTE}{text}" for name, text in pages.items()}
