"""The crash simulator of tests/harness: power loss at seeded moments of a simulated disk."""

import re
import subprocess

import pytest

from tests.python.conftest import REPOSITORY

# Of one seed; other seeds are for whoever searches on: tests/harness/crashes.rs.
CRASHES = 4000


def simulate(crashes: int, threads: int = 2) -> str:
    """Run the simulator for at least this many crashes, and return what it says."""
    simulator = ["cargo", "run", "--quiet", "--example", "harness", "--", "crashes"]
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
def test_nothing_durable_is_lost_and_nothing_wrong() -> None:
    simulate(CRASHES)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_seeds_make_the_same_choices() -> None:
    first = simulate(200)
    assert "fingerprint" in first
    # Stores that live side by side share the process' descriptors; that must not show.
    assert simulate(200, threads=16) == first
