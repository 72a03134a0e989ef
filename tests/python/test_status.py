"""`kvring status` in each state, and the commands that ask the owner while its disk fails."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvring
from kvring.cli import health, main
from kvring.cli.status import status
from kvring.owner_address import SOCKET_NAME
from kvring.owner_requests import ask
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    bare_loop_device,
    make_key,
    pattern,
    run_child,
    until,
)
from tests.python.faulty_device import FaultyDevice, faulty_device
from tests.python.test_enospc import Filler
from tests.python.test_io_errors import MAKE_EXT4
from tests.python.test_ls import VERSION_OFFSET, overwrite
from tests.python.test_stopped_owner import hold, stopped
from tests.support.block_devices import mount, run, temporary_directory
from tests.support.devices import loop_device, shut_down

Start = Callable[..., "subprocess.Popen[str]"]

USER_ID = 54321
SIZE_BYTES = 256 * MIB
CAPACITY_BYTES = 64 * MIB

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class OpenStore(NamedTuple):
    """A store that this process has open, on a device that can fail."""

    device: FaultyDevice
    path: Path
    client: Client


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Open a store with a chunk that was looked up."""
    with ExitStack() as stack:
        device = stack.enter_context(faulty_device(tmp_path, SIZE_BYTES))
        path = mount(stack, MAKE_EXT4, device.path, temporary_directory(stack, tmp_path)) / "store"
        connector = kvring.Connector(path, CAPACITY_BYTES, min_free=0)
        stack.callback(connector.close)
        stack.callback(device.mend)
        client = Client(connector)
        client.store({make_key(1): pattern(MIB, 1)})
        client.exists([make_key(1)])
        yield OpenStore(device, path, client)


def kvring_command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own, which must come back."""
    return subprocess.run(
        [sys.executable, "-m", "kvring", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG_DEADLINE_S,
        check=False,
    )


def status_of(*paths: Path) -> list[dict[str, Any]]:
    """Return what the command says of paths, once as lines and once as JSON."""
    lines = kvring_command("status", *paths)
    done = kvring_command("status", "--json", *paths)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert (lines.stderr, done.stderr) == ("", "")
    is_healthy = all(one["state"] == "healthy" for one in found)
    assert lines.returncode == done.returncode == (0 if is_healthy else 1)
    assert all(one["is_healthy"] == (not one["remedy"]) for one in found)
    for line, path, one in zip(lines.stdout.splitlines(), paths, found, strict=True):
        assert line.startswith(f"{path}: {one['state']}: ")
        assert one["remedy"] in line
    return found


def assert_state(path: Path, state: str, why: str, remedy: str) -> None:
    """Expect a state of one path, and parts of the rest."""
    (found,) = status_of(path)
    assert found["state"] == state, found
    assert why in found["why"], found
    assert remedy in found["remedy"], found


def test_the_help_names_each_state() -> None:
    source = inspect.getsource(health)
    states = set(re.findall(r'_health\(\s*"([^"]+)"', source))
    assert {"healthy", "newer format", "another user's"} <= states
    named = " ".join((status.help or "").split())
    assert [state for state in sorted(states) if f" {state}" not in named] == []


def test_healthy_and_not_open_and_no_store(
    open_client: Callable[..., Client], store_directory: Path, tmp_path: Path
) -> None:
    client = open_client()
    client.store({make_key(1): pattern(MIB, 1)})
    nothing, empty, file = (tmp_path / name for name in ("nothing", "empty", "file"))
    empty.mkdir()
    file.touch()
    healthy, absent, without, no_directory = status_of(store_directory, nothing, empty, file)
    assert no_directory["state"] == "no store"
    assert healthy["state"] == "healthy"
    assert f"process {os.getpid()}, 1 chunk, " in healthy["why"]
    assert absent["state"] == without["state"] == "no store"
    assert absent["why"] == "nothing is there"
    assert without["why"] == "no index.kvring is there"
    client.connector.close()
    assert_state(store_directory, "not open", "its last owner has closed it", "start the server")


def test_a_stopped_owner_and_a_killed_one(store_directory: Path, start_child: Start) -> None:
    owner = start_child(hold, str(store_directory))
    with stopped(owner.pid):
        why = f"process {owner.pid}, which has it open, is stopped"
        assert_state(store_directory, "stopped owner", why, f"kill -CONT {owner.pid}")
    owner.kill()
    owner.wait()
    assert_state(store_directory, "killed owner", "nobody has it open", "start the server")


def test_a_directory_that_was_moved_away(client: Client, store_directory: Path) -> None:
    moved = store_directory.with_name("moved here")
    store_directory.rename(moved)
    remedy = f"mv '{moved}' {store_directory}"
    assert_state(store_directory, "renamed", f"process {os.getpid()} has what was there", remedy)
    # Another store in its place has another owner.
    with kvring.Connector(store_directory, CAPACITY_BYTES) as other:
        Client(other).store({make_key(1): pattern(MIB, 1)})
        assert ask(store_directory, None, {"ask": "stats"})["stats"]["keys"] == 1
        assert ask(moved, None, {"ask": "stats"})["stats"]["keys"] == 0
    shutil.rmtree(store_directory)
    moved.rename(store_directory)
    client.wait_until(lambda: not client.connector.stats()["paths"][0]["trouble"])


def test_a_path_in_a_circle_and_an_index_without_header(
    client: Client, store_directory: Path, tmp_path: Path
) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert_state(circle, "no store", "the path leads nowhere: Too many levels", f"namei {circle}")
    client.store({make_key(1): pattern(MIB, 1)})
    client.connector.close()
    with (store_directory / "index.kvring").open("r+b") as index:
        index.write(bytes(4096))
    # kvring verify could not read it either.
    why = "it is not a kvring index; put back a copy of it, or open the store"
    assert_state(
        store_directory, "damaged index", why, "start the server, which begins a new index"
    )


def test_a_directory_in_the_place_of_an_index_is_no_dead_disk(tmp_path: Path) -> None:
    (tmp_path / "index.kvring").mkdir()
    why = "it is a directory, not a regular file; move it away"
    assert_state(tmp_path, "damaged index", why, "start the server, which begins a new index")
    assert (tmp_path / "index.kvring").is_dir()


@pytest.mark.root
def test_a_block_device(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, SIZE_BYTES) as device:
        path = device.path
        assert_state(path, "no store", "no store is there", f"kvring doctor {path}")
        with kvring.Connector(path, "all"):
            assert status_of(path)[0]["state"] == "healthy"
            run("blockdev", "--setro", str(path))
            try:
                assert_state(path, "read-only", "the device is", f"blockdev --setrw {path}")
            finally:
                run("blockdev", "--setrw", str(path))
        assert_state(path, "not open", "its last owner has closed it", "start the server")


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    with loop_device(tmp_path, "ext4", SIZE_BYTES, "-m", "0") as device:
        path = device.directory / "store"
        with kvring.Connector(path, 2 * CAPACITY_BYTES, min_free=0):
            filler = Filler(device.directory)
            filler.fill()
            place = str(device.directory.parent)
            assert_state(
                path, "full", f"{place} has ", f"df -h {place}; docs/how-to/operations.md#full"
            )
            filler.remove()
            until("the room", lambda: status_of(path)[0]["state"] == "healthy")


@pytest.mark.root
def test_a_disk_that_has_become_read_only(tmp_path: Path) -> None:
    with loop_device(tmp_path, "ext4", SIZE_BYTES) as device:
        path, place = device.directory / "store", str(device.directory.parent)
        run("mount", "-o", "remount,errors=remount-ro", place)
        block = run("findmnt", "-no", "SOURCE", place).strip()
        with kvring.Connector(path, CAPACITY_BYTES, min_free=0):
            fault = Path("/sys/fs/ext4") / Path(block).name / "trigger_fs_error"
            fault.write_text("1", encoding="ascii")
            assert_state(path, "read-only", f"{place} is mounted read-only", "dmesg -T | tail; ")


@pytest.mark.root
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_file_system_that_has_shut_down(tmp_path: Path, file_system: str) -> None:
    with loop_device(tmp_path, file_system, 2 * SIZE_BYTES) as device:
        path = device.directory / "store"
        with kvring.Connector(path, CAPACITY_BYTES, min_free=0):
            shut_down(device.directory)
            why = f"process {os.getpid()} still answers"
            assert_state(path, "dead disk", why, "docs/how-to/operations.md#dead-disk")
            assert kvring_command("stats", path).returncode == 0


@pytest.mark.root
def test_a_dead_disk_and_a_stuck_one(open_store: OpenStore) -> None:
    device, path, _ = open_store
    why = f"process {os.getpid()} still answers"
    device.fail("read")
    assert_state(path, "dead disk", f"{device.path}: Input/output error; {why}", "smartctl -a")
    device.mend()
    with device.stuck():
        remedy = "docs/how-to/operations.md#stuck-disk"
        assert_state(path, "stuck disk", f"{device.path} did not answer in 0.9 s; {why}", remedy)


def test_an_index_that_a_newer_kvring_wrote_is_not_called_damaged(store_directory: Path) -> None:
    kvring.Connector(store_directory, CAPACITY_BYTES).close()
    overwrite(store_directory / "index.kvring", VERSION_OFFSET, b"\x02")
    remedy = "docs/how-to/upgrade.md"
    assert_state(store_directory, "newer format", "has format version 2", remedy)


def say_as_another_user(path: str) -> None:
    """Ask as a user who has no right to the store."""
    main(["status", "--help"])
    os.setuid(USER_ID)
    print()
    print(main(["status", path]), flush=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
def test_a_store_of_another_user(public_directory: Path) -> None:
    path = public_directory / "store"
    remedy = f"sudo -u root kvring status {path}"
    with kvring.Connector(path, CAPACITY_BYTES):
        line, exit_status = run_child(say_as_another_user, str(path)).stdout.splitlines()[-2:]
        assert line.startswith(f"{path}: another user's: a process of user root has it open")
        assert line.endswith(f"do: {remedy}")
        assert exit_status == "1"
    line, _ = run_child(say_as_another_user, str(path)).stdout.splitlines()[-2:]
    assert line.startswith(f"{path}: another user's: {path} is of user root")
    assert line.endswith(f"do: {remedy}")


def zero_index(store: OpenStore) -> None:
    """Have zeros in place of the header of the index."""
    with (store.path / "index.kvring").open("r+b") as index:
        index.write(bytes(4096))


@pytest.mark.root
@pytest.mark.parametrize("fault", ["dead", "stuck", "zeros", "no socket"])
def test_the_owner_answers_whatever_its_disk_does(open_store: OpenStore, fault: str) -> None:
    path = open_store.path
    with ExitStack() as stack:
        if fault == "dead":
            open_store.device.fail("read")
        elif fault == "stuck":
            stack.enter_context(open_store.device.stuck())
        elif fault == "zeros":
            zero_index(open_store)
        else:
            (path / SOCKET_NAME).unlink()
        for arguments in (
            ("stats", path),
            ("top", path, "--count=1", "--interval=0.1"),
            ("size", path),
            ("purge", path, "--namespace=test/model", "--yes", "--dry-run"),
        ):
            done = kvring_command(*arguments)
            assert (done.returncode, done.stderr) == (0, ""), arguments
        purged = kvring_command("purge", path, "--namespace=test/model", "--yes")
        assert "removed 1 chunk," in purged.stdout, purged


READ_INDEX = """
import mmap, os, sys
index = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
print("ready", flush=True)
os.readv(index, [mmap.mmap(-1, mmap.PAGESIZE)])
"""


@pytest.mark.root
@pytest.mark.slow
def test_an_owner_that_waits_for_its_disk_is_not_waited_for(open_store: OpenStore) -> None:
    index = open_store.path / "index.kvring"
    reading = [sys.executable, "-c", READ_INDEX, str(index)]
    with subprocess.Popen(reading, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        with open_store.device.stuck():
            reader.stdout.readline()
            time.sleep(0.5)
            # Whoever reads it keeps it from being written.
            done = kvring_command("purge", open_store.path, "--namespace=test/model", "--yes")
            assert done.returncode == 1, done
            assert "the owner completes the request when it answers again" in done.stderr
            assert kvring_command("stats", open_store.path).returncode == 0
    open_store.client.wait_until(lambda: open_store.client.stat("keys") == 0)


@pytest.mark.root
def test_a_dead_disk_is_no_damage_of_the_store(open_store: OpenStore) -> None:
    device, path, client = open_store
    client.connector.close()
    device.fail("read")
    # The index is in the page cache.
    exported = kvring_command("export", path, "--output", "/dev/null")
    assert exported.returncode == 4
    assert "is unreadable (Input/output error (os error 5)), and left out" in exported.stderr
    with (path / "index.kvring").open("rb") as index:
        os.posix_fadvise(index.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for word in ("info", "ls", "usage", "verify"):
        done = kvring_command(word, path)
        assert done.returncode == 1
        assert "Input/output error" in done.stderr
        assert "put back a copy" not in done.stderr
        assert "dmesg tells of its drive; repair or replace that" in done.stderr


@pytest.mark.root
@pytest.mark.slow
def test_a_stuck_disk_hangs_no_command(open_store: OpenStore) -> None:
    path = open_store.path
    with open_store.device.stuck():
        for word in ("info", "ls", "usage", "verify", "export"):
            done = kvring_command(word, path)
            assert done.returncode == 1
            assert f"the disk below {path} did not answer in 5 s" in done.stderr
        found = {
            one["check"]: one for one in json.loads(kvring_command("doctor", "--json", path).stdout)
        }
    assert found["disk"]["level"] == "error"
    assert "stuck disk: " in found["disk"]["what"]
    assert f"process {os.getpid()} has 1 chunk there" in found["store"]["what"]
    assert f"drive {open_store.device.path.name}" in found


@pytest.mark.root
def test_doctor_says_what_is_dead_and_what_the_owner_says(open_store: OpenStore) -> None:
    open_store.device.fail("read")
    done = kvring_command("doctor", "--json", open_store.path)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 1
    assert f"dead disk: {open_store.device.path}: Input/output" in found["disk"]["what"]
    assert "docs/how-to/operations.md#dead-disk" in found["disk"]["remedy"]
    assert f"process {os.getpid()} has 1 chunk there" in found["store"]["what"]
    assert "repair it" in found["store"]["remedy"]
