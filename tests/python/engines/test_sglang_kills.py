"""Processes with SGLang that are killed at work, and what the next one finds."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

from tests.python.engines.processes import Process, processes

# Parts that are not whole blocks.
SHAPE = {"width": 301}
JOBS = 600
LIVES = 12


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start processes; they are gone at the end of the test."""
    with processes("sglang_worker").started() as start:
        yield start


@pytest.mark.parametrize(("kind", "layout"), [("mha", "page_first"), ("mla", "layer_first")])
def test_random_jobs_with_kills_in_between(
    start: Callable[..., Process], store_path: Path, kind: str, layout: str
) -> None:
    """No page has wrong bytes, and none is lost that was said to be stored."""
    choose = random.Random(f"{kind}-{layout}")
    arguments = (str(store_path), (kind, layout), {"shape": SHAPE})
    acknowledged: set[str] = set()
    jobs: Counter[str] = Counter()
    lives = 0

    def note(told: tuple[str, Any]) -> None:
        jobs[told[0]] += 1
        if told[0] == "stored":
            acknowledged.update(told[1])

    while jobs.total() < JOBS + lives or lives < LIVES:
        life = start("work", *arguments, f"life-{lives}")
        name, found = life.hear()
        assert name == "found"
        assert acknowledged <= set(found), "pages are lost"
        note((name, found))
        end_s = time.monotonic() + choose.uniform(0.0, 0.25)
        while (left_s := end_s - time.monotonic()) > 0:
            if life.has_told(left_s):
                note(life.hear())
        life.kill()
        for told in life.hear_rest():
            note(told)
        life.end()
        lives += 1
    print(f"{lives} lives, {jobs}, {len(acknowledged)} pages")
    assert min(jobs["stored"], jobs["asked"], jobs["loaded"]) > JOBS // 20
