"""The examples do what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY

EXPECTED = {
    "from_python.py": [
        "stored: [True, True, True]",
        "found after a restart: [True, True, True, False]",
        "equal: True",
        "missed: None",
    ],
    "tenants.py": [
        "meta-llama/Llama-3.1-8B-Instruct@small: 8 chunks of 32, quota 8388608",
        "meta-llama/Llama-3.1-8B-Instruct@large: 32 chunks of 32, quota None",
        "removed: 32",
        "left: ['meta-llama/Llama-3.1-8B-Instruct@small']",
    ],
}


def test_all_of_them_are_here() -> None:
    assert {path.name for path in (REPOSITORY / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_prints_what_is_expected(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / name), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_DEADLINE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == sorted(EXPECTED[name])
