"""The kill harness of tests/harness: on the disk, on fresh file systems, on bare devices."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benches.compare.devices import DeviceError, loop_device
from tests.python.conftest import bare_loop_device

REPOSITORY = Path(__file__).parents[2]
IMAGE_SIZE_BYTES = 512 << 20


@pytest.fixture(params=["disk", "ext4", "xfs", 512, 4096])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory on the disk, on ext4 with a journal, on XFS; a blank device."""
    if isinstance(request.param, int):
        with bare_loop_device(tmp_path, IMAGE_SIZE_BYTES, request.param) as blank:
            yield blank.path
        return
    if request.param == "disk":
        yield tmp_path
        return
    with ExitStack() as stack:
        try:
            device = stack.enter_context(loop_device(tmp_path, request.param, IMAGE_SIZE_BYTES))
        except DeviceError as error:
            pytest.skip(str(error))
        yield device.directory


def kill(rounds: int, life_ms: int, *arguments: str) -> None:
    """Run the harness, and look at whether its children came to work."""
    harness = ["cargo", "run", "--quiet", "--release", "--example", "kill_harness", "--"]
    done = subprocess.run(
        [*harness, "--rounds", str(rounds), "--life-ms", str(life_ms), *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{rounds} kills"), done.stdout
    # A harness whose children never got to work would prove nothing.
    worked = int(done.stdout.split(",")[1].split()[0])
    assert worked > rounds // 2, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_wrong_after_200_kills(path: Path) -> None:
    kill(200, 120, "--path", str(path))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", ["extents", "files"])
@pytest.mark.parametrize("count", [2, 3])
def test_the_same_on_several_paths(tmp_path: Path, count: int, layout: str) -> None:
    # To open several takes longer.
    kill(60, 250, "--path", str(tmp_path), "--paths", str(count), "--layout", layout)
