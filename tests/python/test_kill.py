"""The kill harness of tests/harness on the disk that there is; matrix/test_kill.py has others."""

from pathlib import Path

import pytest

from tests.python.conftest import ENGINE, LAYOUT, run_kill_harness


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_wrong_after_200_kills(tmp_path: Path) -> None:
    run_kill_harness(tmp_path, 200, ENGINE, LAYOUT)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", ["extents", "files"])
@pytest.mark.parametrize("count", [2, 3])
def test_the_same_on_several_paths(tmp_path: Path, count: int, layout: str) -> None:
    # To open several takes longer.
    run_kill_harness(tmp_path, 60, ENGINE, layout, "--paths", str(count), life_ms=250)
