"""The crash simulator of tests/harness: power loss at 20,000 seeded moments."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def simulate(crashes: int, threads: int = 2) -> str:
    """Run the simulator for at least this many crashes, and return what it says."""
    simulator = ["cargo", "run", "--quiet", "--example", "crash_simulator", "--"]
    done = subprocess.run(
        [*simulator, "--crashes", str(crashes), "--threads", str(threads)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    # The message names the seed and the command that replays it.
    assert done.returncode == 0, done.stderr
    # The last store may crash more often than is needed for the number.
    counted = re.match(r"(\d+) crashes of \d+ stores, (\d+) kills", done.stdout)
    assert counted, done.stdout
    assert int(counted[1]) >= crashes
    assert int(counted[2]) > 0
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_durable_is_lost_and_nothing_wrong_after_20000_crashes() -> None:
    simulate(20_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_seeds_make_the_same_choices() -> None:
    first = simulate(500)
    assert "fingerprint" in first
    # Stores that live side by side share the process' descriptors; that must not show.
    assert simulate(500, threads=16) == first
