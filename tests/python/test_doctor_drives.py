"""`kvring doctor` about drives, block devices and the file systems on them."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli.doctor.drive import look_at_drive
from kvring.cli.doctor.findings import Level
from tests.python.conftest import MIB, Client, bare_loop_device, pattern
from tests.python.test_doctor import IMAGE_BYTES, examine, ext4_on_loop, only
from tests.support.block_devices import (
    attach_loop,
    mount,
    mount_tmpfs,
    require,
    run,
    temporary_directory,
)


@pytest.fixture
def smart_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], None]:
    """Put a smartctl before all others that prints a report."""
    program = tmp_path / "smartctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(report: dict[str, Any]) -> None:
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(report)}\nEND\n", encoding="utf-8")
        program.chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("report", "level", "part"),
    [
        ({"smart_status": {"passed": False}}, "ERROR", "failing"),
        ({"nvme_smart_health_information_log": {"percentage_used": 93}}, "WARNING", "93 %"),
        ({"nvme_smart_health_information_log": {"media_errors": 4}}, "WARNING", "4 media errors"),
        ({"nvme_smart_health_information_log": {"percentage_used": 3}}, "OK", "3 %"),
        ({"smartctl": {"messages": [{"string": "Permission denied"}]}}, "NOTE", "Permission"),
    ],
)
def test_the_health_of_a_drive(
    tmp_path: Path,
    smart_report: Callable[[dict[str, Any]], None],
    report: dict[str, Any],
    level: str,
    part: str,
) -> None:
    smart_report(report)
    queue = {"scheduler": "[none] mq-deadline", "nr_requests": "1023"}
    findings = list(look_at_drive(made_drive(tmp_path, "nvme0n1", queue), sysfs=tmp_path))
    assert any(one.level.name == level and part in one.what for one in findings), findings


def made_drive(sysfs: Path, name: str, queue: dict[str, str]) -> Path:
    """Make what sysfs has of a drive, as far as it is looked at."""
    drive = sysfs / "block" / name
    (drive / "queue").mkdir(parents=True)
    (drive / "device").mkdir()
    for file, text in queue.items():
        (drive / "queue" / file).write_text(f"{text}\n", encoding="utf-8")
    return drive


def test_an_nvme_drive_with_several_ways_to_it(tmp_path: Path) -> None:
    """The queue of the device that the paths have in common is that of each of them."""
    head = made_drive(tmp_path, "nvme1n2", {"rotational": "0", "zoned": "none"})
    (head / "device" / "model").write_text("Fast 1\n", encoding="utf-8")
    made_drive(tmp_path, "nvme1c0n2", {"scheduler": "[none] kyber", "nr_requests": "1023"})
    made_drive(tmp_path, "nvme1c5n2", {"scheduler": "none [kyber]", "nr_requests": "16"})
    # Ways to other drives.
    made_drive(tmp_path, "nvme1c0n1", {"nr_requests": "1"})
    made_drive(tmp_path, "nvme11c0n2", {"nr_requests": "1"})
    first, *others = look_at_drive(head, sysfs=tmp_path)
    assert first.what == (
        "Fast 1, scheduler none, queue of 1023, scheduler kyber, queue of 16, "
        "2 ways to it: nvme1c0n2, nvme1c5n2"
    )
    notes = [one.remedy for one in others if one.level == Level.NOTE]
    assert "echo none > /sys/block/nvme1c5n2/queue/scheduler" in notes
    assert "echo 256 > /sys/block/nvme1c5n2/queue/nr_requests" in notes


def test_a_queue_that_is_not_told_is_left_out(tmp_path: Path) -> None:
    drive = made_drive(tmp_path, "nvme0n1", {"rotational": "0"})
    (drive / "device" / "model").write_text("Fast 1\n", encoding="utf-8")
    assert next(look_at_drive(drive, sysfs=tmp_path)).what == "Fast 1"


@pytest.mark.parametrize(
    ("zoned", "is_bare", "level"),
    [
        ("host-managed", True, Level.ERROR),
        ("host-managed", False, Level.OK),
        ("host-aware", True, Level.OK),
        ("none", True, Level.OK),
    ],
)
def test_zones_that_are_written_in_order_only(
    tmp_path: Path, zoned: str, is_bare: bool, level: Level
) -> None:
    """A file system on such a drive knows how to write to it."""
    drive = made_drive(tmp_path, "vdz", {"zoned": zoned})
    findings = list(look_at_drive(drive, is_bare=is_bare, sysfs=tmp_path))
    assert max(one.level for one in findings) == level
    assert any("an open refuses it" in one.what for one in findings) is (level == Level.ERROR)


@pytest.mark.root
def test_what_a_device_holds_is_told_before_an_open_refuses_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with bare_loop_device(tmp_path, IMAGE_BYTES) as device:
        _, findings = examine(capsys, device.path)
        blank = [one["what"] for one in findings if one["check"] == "store"]
        assert blank == ["the device is blank; the first open formats it"]
        run("blockdev", "--setro", str(device.path))
        status, findings = examine(capsys, device.path)
        assert "it is read-only" in only(findings, "store", "error")["what"]
        run("blockdev", "--setrw", str(device.path))
        run("mkfs.ext4", "-q", "-F", str(device.path))
        before = device.image.read_bytes()
        status, findings = examine(capsys, device.path)
        found = only(findings, "store", "error")
        assert "the device holds ext4" in found["what"]
        assert "an open refuses it" in found["what"]
        assert f"kvring format {device.path}" in found["remedy"]
        assert status == 1
        with ExitStack() as stack:
            place = temporary_directory(stack, tmp_path)
            run("mount", "-o", "ro,noload", str(device.path), str(place))
            stack.callback(run, "umount", str(place))
            status, findings = examine(capsys, device.path)
            what = only(findings, "store", "error")["what"]
            assert f"in use by a file system mounted at {place}" in what
        assert device.image.read_bytes() == before


@pytest.mark.root
def test_a_store_on_a_device_and_its_damage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with bare_loop_device(tmp_path, IMAGE_BYTES) as device:
        index = tmp_path / "index"
        kvring.Connector(device.path, "all", index_path=index).close()
        status, findings = examine(capsys, device.path)
        assert "its index is elsewhere" in only(findings, "store", "warning")["what"]
        with device.path.open("r+b") as file:
            for offset in (20, MIB - 4096 + 20):
                file.seek(offset)
                file.write(b"damage")
        status, findings = examine(capsys, device.path)
        found = only(findings, "store", "error")
        assert "a kvring store whose superblock is damaged" in found["what"]
        assert status == 1


@pytest.mark.root
def test_a_device_that_cannot_be_opened(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No driver has this number, which is set aside for experiments."""
    os.mknod(device := tmp_path / "device", 0o600 | stat.S_IFBLK, os.makedev(240, 250))
    status, findings = examine(capsys, device)
    assert "No such device or address" in only(findings, "disk", "error")["what"]
    assert status == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [("/dev/nvme77n1", "there is no such device"), ("/dev/null", "it is a character device")],
)
def test_what_no_store_can_be_on(capsys: pytest.CaptureFixture[str], path: str, said: str) -> None:
    status, findings = examine(capsys, path)
    assert said in only(findings, "path", "error")["what"]
    assert status == 1


@pytest.mark.root
@pytest.mark.parametrize(
    ("is_in_memory", "level", "said"),
    [
        (False, "warning", "is not ext4 or XFS: a container's layer goes with the container"),
        (True, "error", "is in memory"),
    ],
)
def test_the_layer_of_a_container(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    is_in_memory: bool,
    level: str,
    said: str,
) -> None:
    with ExitStack() as stack:
        lower, above, place = (temporary_directory(stack, tmp_path) for _ in range(3))
        if is_in_memory:
            mount_tmpfs(stack, IMAGE_BYTES, above)
        (upper := above / "upper").mkdir()
        (work := above / "work").mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, str(place))
        stack.callback(run, "umount", str(place))
        _, findings = examine(capsys, place)
        assert f"overlay on {place} {said}" in only(findings, "file system", level)["what"]


@pytest.mark.root
def test_a_live_store_on_a_full_disk_has_its_space(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with ext4_on_loop(tmp_path) as place:
        with kvring.Connector(place / "store", "32MiB", min_free=0) as connector:
            Client(connector).store({f"{n}": pattern(MIB, n) for n in range(40)})
            with (place / "filler").open("wb") as filler:
                free_bytes = shutil.disk_usage(place).free
                os.posix_fallocate(filler.fileno(), 0, free_bytes - MIB // 2)
            status, findings = examine(capsys, place / "store")
            levels = {one["check"]: one["level"] for one in findings}
            assert (levels["free space"], levels["trial"]) == ("ok", "note"), findings
            assert "open" in only(findings, "store", "warning")["what"]
            assert status == 3
            _, findings = examine(capsys, place / "store", "--capacity", "1GiB")
            assert "1.0 GiB is never reached" in only(findings, "free space", "warning")["what"]
        _, findings = examine(capsys, place / "store")
        assert "error" not in {one["level"] for one in findings}, findings


@pytest.mark.root
def test_the_trial_takes_what_stores_leave_free(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A store that has grown leaves `min_free` on the disk, and no more."""
    with ExitStack() as stack:
        require("losetup", "mkfs.ext4")
        block = attach_loop(stack, tmp_path / "image", 2048 * MIB, is_sparse=True)
        place = temporary_directory(stack, tmp_path)
        mount(stack, ("mkfs.ext4", "-q", "-F"), block, place)
        with (place / "filler").open("wb") as filler:
            free_bytes = shutil.disk_usage(place).free
            os.posix_fallocate(filler.fileno(), 0, free_bytes - 60 * MIB)
        _, findings = examine(capsys, place)
        assert any(one["check"] == "trial" and one["level"] == "ok" for one in findings), findings
