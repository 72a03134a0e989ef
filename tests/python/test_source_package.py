"""The sdist where nothing compiles it: pip says in a sentence what is missing."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.python.conftest import REPOSITORY

pytestmark = pytest.mark.skipif(
    shutil.which("cargo") is None or find_spec("maturin") is None or find_spec("pip") is None,
    reason="the sdist is made with cargo, maturin and pip",
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree."""
    directory = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "maturin", "sdist", "--out", str(directory)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (file,) = directory.glob("*.tar.gz")
    return file


def install(sdist: Path, tmp_path: Path, programs: Path) -> "subprocess.CompletedProcess[str]":
    """Install it where no programs but those of a directory are found; nothing is downloaded."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", tmp_path / "site"]
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", *map(str, options), str(sdist)],
        env={"PATH": str(programs), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_cargo_the_install_says_what_to_do(sdist: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    refused = install(sdist, tmp_path, programs)
    told = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert "kvring is compiled from Rust, and there is no cargo in PATH: install Rust" in told
    assert "Traceback" not in told


def test_with_a_cargo_that_is_too_old_it_says_so(sdist: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    cargo = programs / "cargo"
    cargo.write_text("#!/bin/sh\necho 'cargo 1.63.0 (fd9c4297c 2022-07-01)'\n", encoding="utf-8")
    cargo.chmod(0o755)
    refused = install(sdist, tmp_path, programs)
    told = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert f"kvring needs Rust 1.89, and {cargo} is 1.63: install Rust" in told
    assert "Traceback" not in told
