"""What is on a disk at one moment, with the page cache lost: the store that is opened there.

A child works on a store on a fresh file system. That is on a loop device with direct I/O, whose
image is on XFS, so that a clone of it is the device at one moment while the child goes on. Each
clone is mounted and opened as by a machine that has gone down: with another boot id.
"""

import fcntl
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    REPOSITORY,
    Client,
    child_command,
    make_key,
)
from tests.python.power_loss import (
    AS_AFTER_A_REBOOT,
    CAPACITY_BYTES,
    KEYS,
    MOST_UNDER_WAY,
    OTHER_BOOT_ID,
    Told,
    content_of,
    survey,
    work,
)
from tests.support.block_devices import (
    attach_loop,
    attach_loop_over,
    mount,
    patiently,
    require,
    run,
    temporary_directory,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]

IMAGE_SIZE_BYTES = 320 * MIB
SNAPSHOTS = 3
FLUSH_PERIOD_S = 1.0
# In hundredths of a second: how old what is written may become before the kernel writes it back.
DIRTY_EXPIRE = Path("/proc/sys/vm/dirty_expire_centisecs")
# XFS takes no less for a file that shares blocks with another.
SECTOR_SIZE = ("--sector-size", "4096")
# linux/fs.h: the whole of a file, at one moment.
FICLONE = 0x40049409
MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
# Two of the same file system are mounted at a time.
MOUNT_OPTIONS = {"ext4": (), "xfs": ("-o", "nouuid")}


class Disk:
    """A file system that can be looked at as it is on the disk now."""

    def __init__(self, stack: ExitStack, parent: Path, file_system: str) -> None:
        """Make it, until the stack ends."""
        require("losetup", "mkfs.xfs", MAKE[file_system][0], "mount", "unshare")
        self._stack = stack
        self._parent = parent
        self._file_system = file_system
        below = attach_loop(stack, parent / "below", 4 * IMAGE_SIZE_BYTES, is_sparse=True)
        self._images = mount(stack, MAKE["xfs"], below, temporary_directory(stack, parent))
        image = self._images / "0"
        device = attach_loop(stack, image, IMAGE_SIZE_BYTES, *SECTOR_SIZE, is_sparse=True)
        mount_point = temporary_directory(stack, parent)
        self.directory = mount(stack, MAKE[file_system], device, mount_point)

    def snapshot(self) -> Path:
        """Keep what it has now."""
        copy = self._images / f"{len(list(self._images.iterdir()))}"
        with (self._images / "0").open("rb") as image, copy.open("wb") as file:
            fcntl.ioctl(file, FICLONE, image.fileno())
        return copy

    @contextmanager
    def mounted(self, snapshot: Path) -> Iterator[Path]:
        """Mount what a snapshot has; yield what `directory` was."""
        with ExitStack() as stack:
            mount_point = temporary_directory(stack, self._parent)
            device = attach_loop_over(stack, snapshot, *SECTOR_SIZE)
            run("mount", *MOUNT_OPTIONS[self._file_system], str(device), str(mount_point))
            stack.callback(patiently, run, "umount", str(mount_point))
            yield mount_point / self.directory.name


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Yield a fresh one."""
    with ExitStack() as stack:
        disk = Disk(stack, tmp_path, request.param)
        yield disk


def survey_after_reboot(
    store: Path, layout: str, durability: str, tmp_path: Path
) -> tuple[str | None, dict[str, Any]]:
    """Return what `survey` tells of a store on a machine that has gone down."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text(OTHER_BOOT_ID, encoding="ascii")
    command = child_command(survey, str(store), layout, durability)
    done = subprocess.run(
        [*AS_AFTER_A_REBOOT, str(boot_id), *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=HANG_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reset, found = json.loads(done.stdout)
    return reset, found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["extents", "files"])
def test_best_effort_is_flushed_while_it_is_open(disk: Disk, layout: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"layout": layout, "min_free": 0}
    store = disk.directory / "store"
    with kvring.Connector(store, CAPACITY_BYTES, **options) as connector:
        client = Client(connector)
        client.store({make_key(number): content_of(number, 7) for number in range(KEYS)})
        # Long before the kernel would write it.
        end_s = time.monotonic() + int(DIRTY_EXPIRE.read_text(encoding="ascii")) / 100 / 2
        missed = set(range(KEYS))
        while missed and time.monotonic() < end_s:
            time.sleep(FLUSH_PERIOD_S)
            with disk.mounted(disk.snapshot()) as directory:
                reset, found = survey_after_reboot(
                    directory / "store", layout, "best_effort", tmp_path
                )
            assert reset is None
            missed = {number for number in range(KEYS) if found[str(number)] != 7}
        assert not missed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["extents", "files"])
@pytest.mark.parametrize("durability", ["persistent", "best_effort"])
@pytest.mark.parametrize("seed", [1, 2])
def test_power_loss(
    disk: Disk,
    layout: str,
    durability: str,
    seed: int,
    tmp_path: Path,
    start_child: Callable[..., subprocess.Popen[str]],
) -> None:
    chance = random.Random(seed)
    store = str(disk.directory / "store")
    told = Told(start_child(work, store, layout, durability, seed))
    snapshots: list[tuple[int, Path]] = []
    try:
        for _ in range(SNAPSHOTS):
            lines = told.wait_for_more(chance.randint(1, 150))
            snapshots.append((lines, disk.snapshot()))
        told.wait_for_more(2 * MOST_UNDER_WAY)
    finally:
        told.end()
    held = 0
    for lines, snapshot in snapshots:
        possible = told.possible(lines, is_persistent=durability == "persistent")
        with disk.mounted(snapshot) as directory:
            reset, found = survey_after_reboot(directory / "store", layout, durability, tmp_path)
        for number in range(KEYS):
            version = found[str(number)]
            assert version in possible[number], (
                f"after {lines} lines key {number} is {version}, possible {possible[number]}"
            )
            held += version is not None
        if durability == "persistent":
            assert reset is None
    if durability == "persistent":
        assert held > 0
