"""Mixed load on two builds in turns: that it measures, and says what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY


@pytest.mark.slow
def test_two_builds_are_measured_in_turns(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benches.mixed_load", "--directory", str(tmp_path)]
    builds = ["--build", f"old={sys.executable}", "--build", f"new={sys.executable}"]
    times = ["--minutes", "0.03", "--turn-s", "0.6", "--warm-up-s", "0.2"]
    done = subprocess.run(
        [*command, *builds, *times],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=2 * HANG_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["build"] for result in results] == ["old", "new"]
    for result in results:
        assert result["seconds"] >= 1.8
        assert 0 < result["get_p50_ms"] <= result["get_p99_ms"] <= result["get_max_ms"]
        assert result["set_mb_per_s"] > 0
        assert set(result["longest_submit_ms"]) == {"delete", "exists", "get", "set"}
    assert list(tmp_path.iterdir()) == [], "the stores are removed"
