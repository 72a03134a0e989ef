"""The crash simulator of tests/harness: power loss at 20,000 seeded moments."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_durable_is_lost_and_nothing_wrong_after_20000_crashes() -> None:
    simulator = ["cargo", "run", "--quiet", "--release", "--example", "crash_simulator", "--"]
    done = subprocess.run(
        [*simulator, "--crashes", "20000"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    # The message names the seed and the command that replays it.
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20000 crashes"), done.stdout
