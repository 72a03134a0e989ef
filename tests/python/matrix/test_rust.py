"""The Rust suites that work in a directory, on the file system of the cells that run in full."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.python.conftest import REPOSITORY
from tests.python.matrix.cells import CELLS, CHOICE, Cell, Form

FULL_CELLS = [cell for cell, form in CELLS.items() if form is Form.FULL and cell.medium != "raw"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ground", FULL_CELLS, ids=str, indirect=True)
def test_the_rust_suites_pass(ground: tuple[Cell, Path]) -> None:
    cell, directory = ground
    programs, suites = ["api", "opening", "space"], ["contract::", "opening::", "capacity::"]
    if cell.medium == "tmpfs" and CHOICE == "full":
        # Minutes, and always in memory: tens of thousands of times it opens a store.
        suites.append("damage::")
    # As in the Makefile, so that nothing is built anew.
    cargo = ["cargo", "test", "--quiet", "--workspace", "--exclude", "kvring-python"]
    done = subprocess.run(
        [*cargo, "--no-fail-fast", *(f"--test={program}" for program in programs), "--", *suites],
        cwd=REPOSITORY,
        env=os.environ
        | {
            "TMPDIR": str(directory),
            "KVRING_TEST_ENGINE": cell.engine,
            "KVRING_TEST_LAYOUT": cell.layout,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("test result: ok") == len(programs), done.stdout
