"""Fixtures for the tests that run kvring under the real vLLM and SGLang."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.engines.vllm_lives import Lives


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    """A directory for one store, gone as soon as the test is over: pytest would keep it."""
    path = tmp_path / "store"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def vllm_lives() -> Iterator[Lives]:
    """Processes that have vLLM imported already, one after the other."""
    with Lives() as lives:
        yield lives
