"""The pages of docs/reference are those that tools.reference makes of the code."""

import re
from pathlib import Path

import pytest

from tests.python.conftest import REPOSITORY
from tools.reference import PAGES, make_pages
from tools.reference.errors import log_lines


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Making them fails where a live store has a counter that the code does not describe."""
    return make_pages()


def test_each_page_is_current(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        found = (PAGES / name).read_text(encoding="utf-8")
        assert found == text, f"docs/reference/{name} is not what the code says: make reference"


def test_each_row_of_a_table_has_all_cells(pages: dict[str, str]) -> None:
    """A bar in a text would begin another one."""
    for name, text in pages.items():
        tables = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
        assert tables, name
        for table in tables:
            head, *rows = [line.count("|") for line in table.splitlines()]
            assert set(rows) == {head}, f"{name}: {table}"


@pytest.fixture(scope="module")
def code() -> str:
    """The sources, with each long message in one line."""
    found = ""
    for directory, suffix, joint in (
        ("src", "rs", r"\\\n\s*"),
        ("connector_py/kvring", "py", r'"\n\s*f?"'),
    ):
        sources = [path.read_text(encoding="utf-8") for path in _files(directory, suffix)]
        found += re.sub(joint, "", "\n".join(sources))
    return found


def test_messages_that_are_explained_are_those_of_the_code(code: str) -> None:
    """A line that nobody writes any more, or that reads otherwise by now, is found by nobody."""
    messages = [line for rows in log_lines().values() for lines, _ in rows for line in lines]
    assert len(messages) > 50
    _assert_in_code(messages, code)


@pytest.mark.parametrize("page", ["lmcache", "sglang", "vllm"])
def test_messages_in_the_pages_of_engines_are_those_of_the_code(page: str, code: str) -> None:
    text = (PAGES.parent / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    messages = re.findall(r"^- `([^`]+ [^`]+)`: ", text.partition("## If it goes wrong")[2], re.M)
    assert len(messages) > 1
    _assert_in_code(messages, code)


def _assert_in_code(messages: list[str], code: str) -> None:
    for message in messages:
        for part in filter(None, (part.strip() for part in message.split("..."))):
            assert part in code, message


def _files(directory: str, suffix: str) -> list[Path]:
    return sorted((REPOSITORY / directory).rglob(f"*.{suffix}"))
