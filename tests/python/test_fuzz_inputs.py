"""Inputs of the fuzz targets in Python that were worth keeping: each is run as there."""

from pathlib import Path

import pytest

from hardening import fuzz_archive

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


@pytest.mark.parametrize("path", sorted((CORPUS / "archive").iterdir()), ids=lambda path: path.name)
def test_archives(path: Path) -> None:
    fuzz_archive.run(path.read_bytes())


@pytest.mark.parametrize("path", sorted((CORPUS / "sockets").iterdir()), ids=lambda path: path.name)
def test_sockets(path: Path) -> None:
    pytest.importorskip("numpy")
    from hardening import fuzz_sockets

    fuzz_sockets.run(path.read_bytes())
