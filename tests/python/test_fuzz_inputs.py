"""Inputs of the fuzz targets in Python that were worth keeping: each is run as there."""

import importlib
import tempfile
from pathlib import Path

import pytest

from tests.python.conftest import REPOSITORY, run_child

CORPUS = REPOSITORY / "fuzz" / "corpus"


def replay(target: str, directory: str) -> None:
    """The targets keep their stores open, and see what threads raise: this is their own process."""
    tempfile.tempdir = directory
    run = importlib.import_module(f"tools.fuzz.{target}").run
    inputs = sorted((CORPUS / target).iterdir())
    for path in inputs:
        print(path.name, flush=True)
        run(path.read_bytes())
    print(f"{len(inputs)} passed")


@pytest.mark.parametrize("target", ["archive", "sockets"])
def test_what_was_kept_passes(target: str, tmp_path: Path) -> None:
    if target == "sockets":
        pytest.importorskip("numpy")
    ended = run_child(replay, target, str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    count = len(list((CORPUS / target).iterdir()))
    assert count > 0
    assert ended.stdout.splitlines()[-1] == f"{count} passed"
