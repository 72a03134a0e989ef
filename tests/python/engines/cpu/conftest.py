"""Fixtures for the tests that run the real vLLM on processors."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.python.engines.cpu.processes import Processes


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Processes:
    """Where vLLM has been imported; the test is skipped where it has no kernels."""
    vllm = find_spec("vllm")
    if vllm is None or not (Path(str(vllm.origin)).parent / "_C.abi3.so").exists():
        pytest.skip("vLLM has no kernels for processors (make engines)")
    return Processes(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def models(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of one shape."""
    directory = tmp_path_factory.mktemp("models")
    processes.call("write_models", directory, seeds=[1, 2])
    return sorted(directory.iterdir())
