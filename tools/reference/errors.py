"""errors.md: why an open fails, why a SET fails, and lines of the log."""

import re
from pathlib import Path
from typing import Final

import kvring
from tools.reference.markdown import sections, table
from tools.reference.rust import doc_comments, source

__all__ = ["log_lines", "open_exceptions", "page"]

_ERRORS: Final = "src/error.rs"
_OPEN_ERROR: Final = "pub enum OpenError {"
_OPEN: Final = """
## Why an open fails

An open fails for these reasons only, and then changes nothing. A damaged index, missing data files,
a full file system and power loss do not fail it. Of several paths, one that fails, is read-only or
is missing is left out if another works.
"""
_SET: Final = """
## An error of a SET

A completion has the code and the message of the first key that failed.
"""
_LOG: Final = """
## A line in the log

`...` stands for a path, a number or an error. Repeated failures are summed at
intervals of 1 s to 1 h. Each open logs a line per path, as a warning if chunks were lost.
"""
_URING: Final = """
## Where io_uring is refused

With `engine: auto` kvring then uses threads, and warns once; `engine: io_uring` fails the open.
"""


def page() -> str:
    """Return the page."""
    *log, (_, refusals) = log_lines().items()
    return sections(
        "Errors and messages",
        _OPEN,
        table(("`OpenError::`", "Python", "reason", "action"), _reasons()),
        _SET,
        table(("code", "meaning", "action"), _codes()),
        _LOG,
        *(f"### {title}\n\n{_lines('line', rows)}" for title, rows in log),
        _URING,
        _lines("cause", refusals),
    )


def log_lines() -> dict[str, list[tuple[list[str], str]]]:
    """Return messages with their meaning, by the moment at which they come."""
    text = (Path(__file__).parent / "log_lines.txt").read_text(encoding="utf-8")
    lines: dict[str, list[tuple[list[str], str]]] = {}
    for part in text.split("\n# ")[1:]:
        title, *blocks = part.rstrip().split("\n\n")
        lines[title] = []
        for block in blocks:
            messages = re.findall(r"^\S.*$", block, re.M)
            meaning = " ".join(re.findall(r"^ +(\S.*)$", block, re.M))
            assert messages, block
            assert meaning, block
            lines[title].append((messages, meaning))
    return lines


def _lines(head: str, rows: list[tuple[list[str], str]]) -> str:
    cells = ((", ".join(f"`{line}`" for line in messages), text) for messages, text in rows)
    return table((head, "meaning, action"), cells)


def _parted(comment: str) -> tuple[str, str]:
    """Part what a comment says into meaning and action."""
    meaning, found, action = comment.partition(" Action: ")
    assert found, comment
    return meaning, action[0].upper() + action[1:]


def _reasons() -> list[tuple[str, ...]]:
    raised = _raised()
    rows: list[tuple[str, ...]] = []
    for variant, comment in doc_comments(_ERRORS, _OPEN_ERROR).items():
        classes = ", ".join(f"`{name}`" for name in raised[variant])
        rows.append((f"`{variant}`", classes, *_parted(comment)))
    return rows


def _raised() -> dict[str, list[str]]:
    """Return the classes of exceptions in Python for each variant."""
    arms = source("connector_py/src/errors.rs").partition("fn from_open")[2].partition("\n}\n")[0]
    raised = {}
    for variant in doc_comments(_ERRORS, _OPEN_ERROR):
        _, found, arm = arms.partition(f"OpenError::{variant}")
        assert found, variant
        classes = re.findall(r"(\w+Error)::new_err", arm)
        # That of the system is the first of two: with an errno, and without.
        count = 2 if classes[0] == "PyOSError" else 1
        raised[variant] = [name.removeprefix("Py") for name in classes[:count]]
    return raised


def open_exceptions() -> list[str]:
    """Return the exceptions of kvring that only an open raises."""
    names = {name for names in _raised().values() for name in names}
    return sorted(names - {"OSError", "KvRingError"})


def _codes() -> list[tuple[str, ...]]:
    path = "src/batch/completion_queue.rs"
    comments = doc_comments(path, "pub enum FailureCode {")
    names = dict(re.findall(r'Self::(\w+) => "(\w+)"', source(path)))
    rows = {names[variant]: _parted(comment) for variant, comment in comments.items()}
    assert rows.keys() == set(kvring.FAILURE_CODES)
    return [(f"`{code}`", *row) for code, row in rows.items()]
