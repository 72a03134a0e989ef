"""The harness of tests/harness/random.rs: random operations over a small capacity, in short."""

import subprocess
from pathlib import Path

import pytest

from tests.python.conftest import bare_loop_device

REPOSITORY = Path(__file__).parents[2]


def operate(*arguments: str) -> None:
    """Run the harness, and look at whether it came to do everything."""
    harness = ["cargo", "run", "--quiet", "--example", "random_operations", "--"]
    done = subprocess.run(
        [*harness, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    # The message names the seed and the session.
    assert done.returncode == 0, done.stderr
    assert "nothing wrong, nothing over the capacity" in done.stdout
    assert " 0 chunks evicted" not in done.stdout
    assert " 0 times something guarded" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_operations_on_a_simulated_disk() -> None:
    operate("--operations", "100000")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block_bytes", [512, 4096])
def test_random_operations_on_a_bare_device(tmp_path: Path, block_bytes: int) -> None:
    with bare_loop_device(tmp_path, 256 << 20, block_bytes) as device:
        operate("--operations", "20000", "--disk", str(device.path))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_operations_on_a_disk(store_directory: Path) -> None:
    store_directory.mkdir()
    operate("--operations", "20000", "--disk", str(store_directory))
