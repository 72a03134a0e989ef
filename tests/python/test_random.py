"""The harness of tests/harness/random: random operations over a small capacity, in short."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.python.conftest import MIB, REPOSITORY, bare_loop_device


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("disk", "operations"), [("simulated", 100_000), ("device", 20_000), ("directory", 20_000)]
)
def test_random_operations(tmp_path: Path, disk: str, operations: int) -> None:
    with ExitStack() as stack:
        arguments = ["--operations", str(operations)]
        if disk == "device":
            device = stack.enter_context(bare_loop_device(tmp_path, 256 * MIB, 4096))
            arguments += ["--disk", str(device.path)]
        elif disk == "directory":
            arguments += ["--disk", str(tmp_path)]
        harness = ["cargo", "run", "--quiet", "--example", "harness", "--", "random"]
        done = subprocess.run(
            [*harness, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
    # The message names the seed and the session.
    assert done.returncode == 0, done.stderr
    assert "nothing wrong, nothing over the capacity" in done.stdout
    assert " 0 chunks evicted" not in done.stdout
    assert " 0 times something guarded" not in done.stdout
