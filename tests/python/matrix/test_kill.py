"""The kill harness of tests/harness: each layout on each kind of disk, and on several paths."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.python.conftest import ENGINE, REPOSITORY
from tests.python.matrix.cells import CELLS, CHOICE, Form
from tests.python.matrix.conftest import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# In `make matrix` every cell is killed as often as all of them together in `make test`.
KILLS = 400 if CHOICE == "full" else 100
FULL_CELLS = [cell for cell, form in CELLS.items() if form is Form.FULL]


def kill(path: Path, kills: int, engine: str, layout: str, *arguments: str, life_ms: int) -> None:
    """Kill a child at work on a store again and again; nothing is lost, and nothing wrong."""
    harness = ["cargo", "run", "--quiet", "--example", "harness", "--", "kills"]
    options = ["--rounds", str(kills), "--life-ms", str(life_ms), "--path", str(path), *arguments]
    done = subprocess.run(
        [*harness, *options],
        cwd=REPOSITORY,
        env=os.environ | {"KVRING_TEST_ENGINE": engine, "KVRING_TEST_LAYOUT": layout},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{kills} kills"), done.stdout
    # A harness whose children never got to work would prove nothing.
    worked = int(done.stdout.split(",")[1].split()[0])
    assert worked > kills // 10, done.stdout


@pytest.mark.parametrize("ground", FULL_CELLS, ids=str, indirect=True)
def test_kills(store: Store) -> None:
    if not store.is_device:
        store.path.mkdir()
    kill(store.path, KILLS, store.cell.engine, store.cell.layout, life_ms=120)


@pytest.mark.parametrize(("layout", "count"), [("extents", 2), ("files", 3)])
def test_kills_on_several_paths(tmp_path: Path, layout: str, count: int) -> None:
    # To open several takes longer.
    kill(tmp_path, KILLS // 2, ENGINE, layout, "--paths", str(count), life_ms=250)
