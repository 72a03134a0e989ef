"""Power loss at any write below the file system, or below a store on a bare device.

A child works on a store on a device whose writes are logged. For each of many moments the device
is made anew as power loss may have left it: writes behind the last flush are kept, dropped or torn
per sector. That is mounted, opened as by a machine that has gone down, and compared with what
was answered up to that moment.

It takes 60 images; `make power-loss` takes 500 (KVRING_POWER_LOSS_IMAGES).
"""

import json
import os
import random
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.python.conftest import MIB, REPOSITORY, child_command
from tests.python.power_loss import AS_AFTER_A_REBOOT, KEYS, OTHER_BOOT_ID, Told, survey_each, work
from tests.python.write_log import LoggedDevice
from tests.support.block_devices import (
    attach_loop_over,
    patiently,
    require,
    run,
    temporary_directory,
)
from tests.support.write_log import Images

pytestmark = [pytest.mark.root, pytest.mark.slow]

MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
# XFS takes no less than 300 MiB.
SIZE_BYTES = {"ext4": 160 * MIB, "xfs": 320 * MIB, "bare": 96 * MIB}
CASES = [
    ("ext4", "extents", "persistent"),
    ("ext4", "files", "persistent"),
    ("xfs", "extents", "persistent"),
    ("xfs", "files", "persistent"),
    ("bare", "extents", "persistent"),
    ("ext4", "extents", "best_effort"),
]
IMAGES = int(os.environ.get("KVRING_POWER_LOSS_IMAGES", "60"))
LINES = 120 + IMAGES
ROUNDS = 4


class Surveyor:
    """A process that looks into stores as after a reboot."""

    def __init__(self, stack: ExitStack, tmp_path: Path) -> None:
        """Start it, until the stack ends."""
        mount_point = temporary_directory(stack, tmp_path)
        boot_id = tmp_path / "boot_id"
        boot_id.write_text(OTHER_BOOT_ID, encoding="ascii")
        self._child = subprocess.Popen(
            [*AS_AFTER_A_REBOOT, str(boot_id), *child_command(survey_each, str(mount_point))],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)
        assert self._hear() == "ready\n"

    def survey(
        self, device: Path, place: str, layout: str, durability: str
    ) -> tuple[str | None, list[object]]:
        """Return why the index was started anew, or what was raised, and what is there by key."""
        assert self._child.stdin is not None
        arguments = [str(device), place == "bare", layout, durability]
        self._child.stdin.write(json.dumps(arguments) + "\n")
        self._child.stdin.flush()
        reset, found = json.loads(self._hear())
        return reset, [found.get(str(number), "?") for number in range(KEYS)]

    def _hear(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline()

    def _end(self) -> None:
        self._child.kill()
        self._child.communicate()


def record(
    device: LoggedDevice,
    place: str,
    layout: str,
    durability: str,
    start_child: Callable[..., subprocess.Popen[str]],
) -> tuple[Told, int]:
    """Have a child work on a store on the device; return what it says, and the log before it."""
    with ExitStack() as stack:
        path = device.path
        if place != "bare":
            run(*MAKE[place], str(device.path))
            mount_point = temporary_directory(stack, device.log.path.parent)
            run("mount", str(device.path), str(mount_point))
            stack.callback(patiently, run, "umount", str(mount_point))
            path = mount_point / "store"
            run("sync", "--file-system", str(mount_point))
        begin_bytes = device.log.length_bytes()
        told = Told(start_child(work, str(path), layout, durability, 1, str(device.log.path)))
        try:
            for _ in range(ROUNDS):
                told.wait_for_more(LINES // ROUNDS)
                # By itself the kernel would write the index in half a minute.
                if durability == "best_effort":
                    run("sync", "--file-system", str(path))
        finally:
            told.end()
        return told, begin_bytes


@pytest.mark.timeout(60 + 20 * IMAGES)
@pytest.mark.parametrize(("place", "layout", "durability"), CASES)
def test_what_was_answered_is_there_whatever_write_was_the_last(
    place: str,
    layout: str,
    durability: str,
    tmp_path: Path,
    start_child: Callable[..., subprocess.Popen[str]],
) -> None:
    is_persistent = durability == "persistent"
    chance = random.Random(f"{place} {layout} {durability}")
    held = losses = 0
    with ExitStack() as stack:
        require("mount", "unshare", MAKE.get(place, ("losetup",))[0])
        device = LoggedDevice(stack, tmp_path, SIZE_BYTES[place])
        told, begin_bytes = record(device, place, layout, durability, start_child)
        images = Images(device.log, device.size_bytes, temporary_directory(stack, tmp_path))
        surveyor = Surveyor(stack, tmp_path)
        image = tmp_path / "image"
        wrong: list[str] = []
        for moment in images.moments(chance, begin_bytes, -(-IMAGES // len(CASES))):
            images.make(chance, moment, image)
            lines = told.before(images.log_bytes(moment))
            possible = told.possible(lines, is_persistent=is_persistent, begun=lines)
            with ExitStack() as attached:
                left = attach_loop_over(attached, image)
                reset, found = surveyor.survey(left, place, layout, durability)
            was_made = lines > 0
            if reset is not None and (was_made or ":" in reset):
                wrong.append(f"at {moment}: {reset}")
            for number in range(KEYS):
                if found[number] not in possible[number]:
                    wrong.append(
                        f"at {moment}, after {lines} lines, key {number} is {found[number]}, "
                        f"possible {possible[number]}"
                    )
                    losses += found[number] is None
                held += isinstance(found[number], int)
        assert not wrong, f"{losses} lost; " + "\n".join(wrong[:20])
        print(f"{place}, {layout}, {durability}: {held} chunks held, 0 lost")
        if is_persistent:
            assert held > 0
