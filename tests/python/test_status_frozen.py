"""`kvring status`, and commands that change a store, on a frozen file system."""

import json
import os
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import MIB, Client, bare_loop_device, make_key, pattern, until
from tests.python.test_frozen import frozen
from tests.python.test_status import (
    CAPACITY_BYTES,
    SIZE_BYTES,
    assert_state,
    kvring_command,
    status_of,
)
from tests.support.devices import loop_device


@pytest.mark.root
def test_writes_that_the_drive_does_not_answer(tmp_path: Path) -> None:
    """Reads are answered, so the disk is not stuck for a look at it; the section is the same."""
    with loop_device(tmp_path, "ext4", 2 * SIZE_BYTES) as device:
        path = device.directory / "store"
        connector = kvring.Connector(path, CAPACITY_BYTES, min_free=0)
        with connector, frozen(device.directory):
            connector.submit_batch_set([make_key(1)], [pattern(MIB, 1)])
            until("silence", lambda: "the drive answers nothing" in status_of(path)[0]["owner"])
            remedy = "docs/how-to/operations.md#stuck-disk"
            assert_state(path, "frozen", f"process {os.getpid()} still answers", remedy)


@pytest.mark.root
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_frozen_file_system(tmp_path: Path, file_system: str) -> None:
    with loop_device(tmp_path, file_system, 2 * SIZE_BYTES) as device:
        path, place = device.directory / "store", device.directory.parent
        with kvring.Connector(path, CAPACITY_BYTES, min_free=0) as connector:
            Client(connector).store({make_key(1): pattern(MIB, 1)})
            with frozen(place):
                # No write is due, and the owner knows of nothing.
                why = f"{place} takes no change: it is frozen, or its drive answers no write"
                remedy = f"fsfreeze --unfreeze {place}"
                assert_state(path, "frozen", f"{why}; process {os.getpid()} still answers", remedy)
                doctor = json.loads(kvring_command("doctor", "--json", path).stdout)
                found = {one["check"]: one["what"] for one in doctor}
                assert found["disk"] == f"frozen: {why}; process {os.getpid()} still answers"
                # The owner cannot write its index. The command ends before the owner's time is up.
                purged = kvring_command("purge", path, "--namespace=test/model", "--yes")
                assert purged.returncode == 1
                assert f"the file system of {path} took no change for 5 s" in purged.stderr
                assert "fsfreeze --unfreeze" in purged.stderr
                # The owner does that at once, but frees nothing.
                resized = kvring_command("resize", path, "--capacity=16MiB", "--yes")
                assert resized.returncode == 4
                assert f"the file system of {path} took no change for 5 s" in resized.stderr
            assert status_of(path)[0]["state"] == "healthy"
        with frozen(place):
            # Nobody has it open.
            resized = kvring_command("resize", path, "--capacity=32MiB", "--yes")
        assert resized.returncode == 1
        assert f"the file system of {path} took no change for 5 s" in resized.stderr
        assert (path / "index.kvring").is_file()


@pytest.mark.root
def test_a_frozen_file_system_below_the_index_of_a_device(tmp_path: Path) -> None:
    """Its file has a name of its own."""
    with (
        loop_device(tmp_path, "ext4", 2 * SIZE_BYTES) as device,
        bare_loop_device(tmp_path, SIZE_BYTES) as bare,
    ):
        indexes, name = device.directory / "indexes", bare.path
        kvring.Connector(name, "all", index_path=indexes).close()
        with frozen(device.directory):
            (found,) = json.loads(
                kvring_command("status", name, f"--index-path={indexes}", "--json").stdout
            )
    assert found["state"] == "frozen", found
