"""The package as it is installed: beside the next LMCache as the wheel, without the sources."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvring

pytestmark = pytest.mark.lmcache

REPOSITORY = Path(__file__).parents[3]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program where no compiler is found."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_tells_what_it_is() -> None:
    info = kvring.build_info()
    assert info["version"] == kvring.__version__
    assert info["profile"] == "release"
    assert str(info["compiler"]).startswith("rustc ")
    assert "linux-gnu" in str(info["target"])
    assert (info["format_version"], info["device_format_version"]) == (1, 1)


def test_where_it_comes_from() -> None:
    """From the sources in the environment that builds them, and else from a wheel."""
    found = run("-c", "import kvring; print(kvring.__file__)")
    assert found.returncode == 0, found
    is_editable = Path(sys.prefix) == REPOSITORY / ".venv"
    assert Path(found.stdout).is_relative_to(REPOSITORY / "connector_py") == is_editable


def test_the_doctor_comes_with_it(tmp_path: Path) -> None:
    examined = run("-m", "kvring", "doctor", "--json", tmp_path)
    assert examined.returncode in (0, 3), examined
    findings = {one["check"]: one for one in json.loads(examined.stdout)}
    assert findings["kvring"]["what"] == kvring.__version__
    assert findings["LMCache"]["level"] == "ok"
