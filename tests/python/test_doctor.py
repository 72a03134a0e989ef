"""`kvring doctor`: what is wrong with a place or a process is found, and a way out named."""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli import main
from kvring.cli.doctor import left_memory, place
from kvring.mounts import mount_of
from tests.python.conftest import MIB, Client, pattern, run_child
from tests.python.test_engines import DENIED_BY_DOCKER, install_filter
from tests.support.block_devices import (
    attach_loop,
    mount,
    mount_tmpfs,
    require,
    run,
    temporary_directory,
)

# Nobody's.
USER_ID = 54321
IMAGE_BYTES = 64 * MIB

Findings = list[dict[str, Any]]


def examine(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Findings]:
    """Run the command in this process; return its status and what it found."""
    capsys.readouterr()
    status = main(["doctor", "--json", *map(str, arguments)])
    return status, json.loads(capsys.readouterr().out)


def only(findings: Findings, check: str, level: str) -> dict[str, Any]:
    """Return the one finding of a check that is of a level."""
    (found,) = [one for one in findings if (one["check"], one["level"]) == (check, level)]
    assert found["what"]
    assert found["remedy"], found
    return found


def doctor_of_child(path: str, plant: str) -> None:
    """Plant something into this process, and run the command in it."""
    with redirect_stdout(io.StringIO()):
        # Another user may not be able to import what this one can.
        main(["doctor"])
    if plant == "seccomp":
        install_filter(DENIED_BY_DOCKER)
    elif plant == "memlock":
        os.setuid(USER_ID)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    elif plant == "user":
        os.setuid(USER_ID)
    raise SystemExit(main(["doctor", "--json", path]))


def examine_as(path: Path, plant: str) -> tuple[int, Findings]:
    """Run the command in a process of its own with something planted."""
    ended = run_child(doctor_of_child, str(path), plant)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Make a directory that any user may enter and write to."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


@contextmanager
def ext4_on_loop(parent: Path, *mount_options: str) -> Iterator[Path]:
    """Mount an ext4 of its own, and yield the directory that it is."""
    with ExitStack() as stack:
        require("losetup", "mkfs.ext4")
        block = attach_loop(stack, parent / "ext4.image", IMAGE_BYTES)
        mount_point = temporary_directory(stack, parent)
        mount(stack, ("mkfs.ext4", "-q", "-F"), block, mount_point)
        for option in mount_options:
            run("umount", str(mount_point))
            run("mount", "-o", option, str(block), str(mount_point))
        yield mount_point


def test_a_good_place_has_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet"
    status, findings = examine(capsys, place, "--capacity", "32MiB")
    levels = {one["level"] for one in findings}
    assert "error" not in levels, findings
    assert status == (3 if "warning" in levels else 0)
    assert any(one["check"] == "trial" and one["level"] == "ok" for one in findings)
    assert any(one["check"] == "O_DIRECT" and one["level"] == "ok" for one in findings)
    assert list(tmp_path.iterdir()) == [], "it leaves nothing"


def test_seccomp(public_directory: Path) -> None:
    status, findings = examine_as(public_directory, "seccomp")
    found = only(findings, "io_uring", "warning")
    assert "a seccomp filter denies it" in found["what"]
    assert "allow io_uring_setup, io_uring_enter and io_uring_register" in found["remedy"]
    assert status == 3
    # It works all the same.
    assert any(one["check"] == "trial" and one["level"] == "ok" for one in findings)


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes another user's id: that takes root")
def test_no_locked_memory(public_directory: Path) -> None:
    status, findings = examine_as(public_directory, "memlock")
    assert "limited to 0 B" in only(findings, "locked memory", "warning")["what"]
    assert status == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes another user's id: that takes root")
def test_a_directory_that_may_not_be_written_to(public_directory: Path) -> None:
    public_directory.chmod(0o755)
    status, findings = examine_as(public_directory, "user")
    found = only(findings, "rights", "error")
    assert f"user {USER_ID} may not write to {public_directory}" in found["what"]
    assert status == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes another user's id: that takes root")
def test_a_store_of_another_user(public_directory: Path) -> None:
    store = public_directory / "store"
    kvring.Connector(store, "16MiB").close()
    store.chmod(0o777)
    _, findings = examine_as(store, "user")
    assert "belongs to user 0" in only(findings, "rights", "warning")["what"]


def test_a_store_that_is_open_elsewhere(
    capsys: pytest.CaptureFixture[str], client: Client, store_directory: Path
) -> None:
    client.store({"key": pattern(5000, 1)})
    status, findings = examine(capsys, store_directory)
    found = only(findings, "store", "warning")
    assert f"process {os.getpid()} on host" in found["what"]
    assert status == 3
    assert client.load("key", 5000) == pattern(5000, 1)
    client.connector.close()
    _, findings = examine(capsys, store_directory)
    assert any(one["check"] == "store" and one["level"] == "ok" for one in findings)


def test_the_owner_says_that_nothing_is_ever_found(
    capsys: pytest.CaptureFixture[str],
    client: Client,
    store_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a store has an owner of hours: its note is that of a test of the core."""
    stats = client.connector.stats()
    stats["paths"][0]["note"] = "nothing was found since the open 3 h ago"
    monkeypatch.setattr(type(client.connector), "stats", lambda _: stats, raising=True)
    _, findings = examine(capsys, store_directory)
    assert any("nothing was found" in one["what"] and one["remedy"] for one in findings)


@pytest.mark.root
def test_memory_is_no_drive(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        place = mount_tmpfs(stack, IMAGE_BYTES, temporary_directory(stack, tmp_path))
        status, findings = examine(capsys, place)
        assert "tmpfs" in only(findings, "file system", "error")["what"]
        assert "is in memory" in only(findings, "file system", "error")["what"]
        assert status == 1


@pytest.mark.root
def test_a_full_disk(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ext4_on_loop(tmp_path) as place:
        _, findings = examine(capsys, place, "--capacity", "1TiB")
        assert "1.0 TiB is never reached" in only(findings, "free space", "warning")["what"]
        with (place / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(place).free - MIB)
        status, findings = examine(capsys, place)
        assert "no room for a store" in only(findings, "free space", "error")["what"]
        assert status == 1


@pytest.mark.root
def test_a_file_system_without_direct_io(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with ext4_on_loop(tmp_path, "data=journal") as place:
        status, findings = examine(capsys, place)
        assert "page cache" in only(findings, "O_DIRECT", "warning")["what"]
        assert status == 3


@pytest.mark.root
def test_a_read_only_mount(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ext4_on_loop(tmp_path, "ro") as place:
        status, findings = examine(capsys, place)
        found = only(findings, "file system", "error")
        assert "read-only" in found["what"]
        assert found["remedy"] == f"mount -o remount,rw {place}"
        assert status == 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [("nfs4", "is not local"), ("cifs", "is not local"), ("zfs", "is not ext4 or XFS")],
)
def test_a_file_system_that_is_not_supported(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    said: str,
) -> None:
    """The kernel here mounts none of these: what is mounted there goes by such a name."""
    mounted = mount_of(tmp_path)
    assert mounted is not None
    monkeypatch.setattr(place, "mount_of", lambda _: replace(mounted, file_system=kind))
    _, findings = examine(capsys, tmp_path)
    found = only(findings, "file system", "warning")
    assert found["what"] == f"{kind} on {mounted.mount_point} {said}"
    assert found["remedy"]


def test_a_capacity_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", str(tmp_path), "--capacity", "big"]) == 2
    assert "kvring doctor: --capacity: " in capsys.readouterr().err


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a directory of memory looked at in place of /dev/shm, and no file too young."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        monkeypatch.setattr(left_memory, "_DIRECTORY", Path(directory))
        monkeypatch.setattr(left_memory, "_LEAST_AGE_S", 0)
        yield Path(directory)


def cleaned(capsys: pytest.CaptureFixture[str]) -> list[str]:
    status, findings = examine(capsys, "--clean-shm")
    assert status == 0
    return [one["what"] for one in findings]


@pytest.mark.parametrize("use", ["open", "mapped"])
def test_memory_of_a_killed_vllm_goes_when_no_process_has_it(
    capsys: pytest.CaptureFixture[str], shm: Path, use: str
) -> None:
    """A number behind the name makes it a further file of the same engine."""
    files = [shm / f"vllm_offload_of-{name}" for name in ("1.mmap", "1.mmap.1", "2.mmap")]
    for file in files:
        file.write_bytes(bytes(MIB))
    script = "import mmap, sys; file = open(sys.argv[1], 'r+b'); "
    if use == "mapped":
        # What Python maps it keeps open, so that somebody else has to map it.
        script += "import ctypes; libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p; "
        script += "libc.mmap(None, 4096, 3, 1, file.fileno(), 0); file.close(); "
    script += "print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script, str(files[1])]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        _, findings = examine(capsys)
        found = only(findings, "memory of vLLM", "warning")
        assert found["what"].startswith(f"1 file in {shm} with 1.0 MiB of a killed vLLM")
        assert cleaned(capsys)[-1].startswith(f"removed 1 file in {shm} with 1.0 MiB")
        assert sorted(shm.iterdir()) == files[:2]
        process.kill()
    _, findings = examine(capsys)
    assert "2 files" in only(findings, "memory of vLLM", "warning")["what"]
    assert cleaned(capsys)[-1].startswith(f"removed 2 files in {shm} with 2.0 MiB")
    assert list(shm.iterdir()) == []


def test_memory_that_may_be_of_a_vllm_that_starts_stays(
    capsys: pytest.CaptureFixture[str], shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_memory, "_LEAST_AGE_S", 60)
    (young := shm / "vllm_offload_1.mmap").touch()
    assert not any(one["check"] == "memory of vLLM" for one in examine(capsys)[1])
    assert "younger than 60 s" in cleaned(capsys)[0]
    assert list(shm.iterdir()) == [young]


def test_what_is_no_file_of_vllm_stays(capsys: pytest.CaptureFixture[str], shm: Path) -> None:
    (target := shm / "target").touch()
    (shm / "vllm_offload_1.mmap").symlink_to(target)
    (shm / "vllm_offload_2.mmap").mkdir()
    for name in ("vllm_offload_3", "vllm_offload_4.mmap.x", "other_vllm_offload_5.mmap"):
        (shm / name).touch()
    before = sorted(shm.iterdir())
    assert cleaned(capsys)[-1].startswith("removed 0 files")
    assert sorted(shm.iterdir()) == before


def clean_as_another_user(directory: str) -> None:
    """Clean as a user who cannot read what root does."""
    Path(directory, "vllm_offload_root.mmap").touch()
    own = Path(directory, "vllm_offload_own.mmap")
    own.touch()
    os.chown(own, USER_ID, USER_ID)
    left_memory._DIRECTORY = Path(directory)
    left_memory._LEAST_AGE_S = 0
    doctor_of_child("--clean-shm", "user")


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes another user's id: that takes root")
def test_a_user_removes_memory_of_its_own(public_directory: Path) -> None:
    ended = run_child(clean_as_another_user, str(public_directory))
    note, removed = json.loads(ended.stdout)
    assert (note["level"], "1 file" in note["what"]) == ("note", True)
    assert "of other users: not every process can be read" in note["what"]
    assert removed["what"].startswith("removed 1 file")
    assert removed["what"].endswith("; not every process can be read")
    assert [one.name for one in public_directory.iterdir()] == ["vllm_offload_root.mmap"]


def test_cleaning_looks_at_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--clean-shm", "/mnt"]) == 2
    assert "--clean-shm goes without PATH" in capsys.readouterr().err
