"""A store on several paths: options, what is told of each, and a disk that dies under load."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    KIB,
    MIB,
    Client,
    bare_loop_device,
    make_key,
    pattern,
    until,
)
from tests.support.devices import loop_device
from tests.support.pages import fetched

CAPACITY_BYTES = 96 * MIB
IMAGE_SIZE_BYTES = 192 * MIB
CHUNK_BYTES = 64 * KIB + 100


@pytest.fixture
def disks(tmp_path: Path) -> list[str]:
    """Name two directories on one disk."""
    return [str(tmp_path / "disk0"), str(tmp_path / "disk1")]


@contextmanager
def opened(
    paths: list[str], capacity: int | str | list[int | str] = CAPACITY_BYTES, **options: Any
) -> Iterator[Client]:
    """Open a store on several paths."""
    with kvring.Connector(paths, capacity, **options) as connector:
        yield Client(connector)


def test_each_path_is_told_of(disks: list[str]) -> None:
    chunks = {make_key(number): pattern(CHUNK_BYTES, number) for number in range(200)}
    with opened(disks, ["128MiB", 64 * MIB]) as client:
        client.store(chunks)
        stats = client.connector.stats()
        first, second = stats["paths"]
        assert [first["path"], second["path"]] == disks
        assert first["in_use"]
        assert second["in_use"]
        assert not first["reason"]
        assert first["keys"] + second["keys"] == stats["keys"] == 200
        assert (first["capacity_bytes"], second["capacity_bytes"]) == (128 * MIB, 64 * MIB)
        assert stats["capacity_bytes"] == 192 * MIB
        assert first["keys"] > second["keys"] > 30, "keys go by capacity"
        # All names that are numbers are sums of those of the paths, but for a time.
        for name, value in first.items():
            if type(value) is int and name not in ("memory_alignment_bytes", "last_error_ms"):
                assert stats[name] == value + second[name], name
        assert repr(client.connector).startswith(
            f'kvring.Connector(path="{disks[0]}", "{disks[1]}"'
        )
    with opened(disks, ["128MiB", 64 * MIB]) as client:
        assert client.connector.recovery["kept"] == 200
        assert client.connector.recovery["clean_shutdown"]
        for key, content in chunks.items():
            assert client.load(key, CHUNK_BYTES) == content


@pytest.mark.parametrize(
    ("paths", "capacity", "told"),
    [
        ([], "1GiB", "'path' = [] is not valid: it is empty"),
        (["", "b"], "1GiB", "'path' = ['', 'b'] is not valid: it is empty"),
        (["a", 7], "1GiB", "it is a number, not a string"),
        ([f"path{number}" for number in range(31)], "1GiB", "31 are too many"),
        (["a", "b"], ["1GiB", "1GiB", "1GiB"], "2 paths but 3 capacities"),
        (["a", "b"], [], "'capacity' = [] is not valid: it is empty"),
        (["a", "b"], ["1GiB", "1KiB"], "1 KiB is less than 16 MiB"),
    ],
)
def test_wrong_lists_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    paths: Any,
    capacity: Any,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kvring.ConfigError) as error:
        kvring.Connector(paths, capacity)
    assert told in str(error.value)
    assert list(tmp_path.iterdir()) == [], "nothing is made"


@pytest.mark.root
@pytest.mark.timeout(300)
def test_a_disk_that_is_dead_at_open_is_left_out(tmp_path: Path, port: int) -> None:
    with loop_device(tmp_path, "ext4", IMAGE_SIZE_BYTES) as device:
        paths = [str(tmp_path / "first"), str(device.directory / "store")]
        assert_left_out_if_dead_at_open(paths, device.directory.parent, port)


def assert_left_out_if_dead_at_open(paths: list[str], mount_point: Path, port: int) -> None:
    chunks = {make_key(number): pattern(CHUNK_BYTES, number) for number in range(100)}
    with opened(paths) as client:
        client.store(chunks)
        of_first = client.connector.stats()["paths"][0]["keys"]
    remount(mount_point, "ro")
    try:
        with opened(paths, metrics_port=port) as client:
            first, second = client.connector.stats()["paths"]
            assert first["in_use"]
            assert not second["in_use"]
            status, text = fetched(port, "/healthz")
            assert (status, json.loads(text)["healthy"]) == (503, False)
            assert "Read-only" in second["reason"]
            assert client.exists(list(chunks)).count(True) == of_first
            # The last bytes that are stored count, wherever they are.
            client.store({key: content[::-1] for key, content in chunks.items()})
    finally:
        remount(mount_point, "rw")
    with opened(paths) as client:
        assert client.connector.recovery["stale"] == 100 - of_first
        for key, content in chunks.items():
            assert client.load(key, CHUNK_BYTES) in (None, content[::-1])


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[Path]]:
    """Yield three names below /dev of bare devices."""
    with ExitStack() as stack:
        names = []
        for number in range(3):
            (tmp_path / f"{number}").mkdir()
            device = stack.enter_context(bare_loop_device(tmp_path / f"{number}", 64 * MIB))
            names.append(Path(f"/dev/kvring-test-{os.getpid()}-{number}"))
            names[-1].symlink_to(device.path)
            stack.callback(names[-1].unlink, missing_ok=True)
        yield names


def test_a_device_that_is_not_there_any_more_is_left_out(
    devices: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    paths = [str(path) for path in devices]
    chunks = {make_key(number): pattern(CHUNK_BYTES, number) for number in range(100)}
    with opened(paths, "all") as client:
        client.store(chunks)
        held = [path["keys"] for path in client.connector.stats()["paths"]]
    target = devices[1].readlink()
    devices[1].unlink()
    # Again and again: the note that is written without it must not make it unknown.
    for _ in range(2):
        with opened(paths, "all") as client:
            stats = client.connector.stats()["paths"]
            assert [path["in_use"] for path in stats] == [True, False, True]
            assert "there is no such device" in stats[1]["reason"]
            assert client.exists(list(chunks)).count(True) == held[0] + held[2]
            for key, content in chunks.items():
                assert client.load(key, CHUNK_BYTES) in (None, content)
    assert f"{paths[1]} is left out" in caplog.text
    # One more is not known.
    with pytest.raises(kvring.ConfigError, match="there is no such device"):
        kvring.Connector([*paths, f"{paths[1]}-misspelt"], "all")
    with opened(paths, "all") as client:
        client.store(chunks)
    devices[1].symlink_to(target)
    with opened(paths, "all") as client:
        assert client.connector.recovery["stale"] == held[1]
        assert client.exists(list(chunks)).count(True) >= held[0] + held[2]
        client.store(chunks)
        assert client.exists(list(chunks)) == [True] * len(chunks)
    # All of them work: none is expected to be missing any more.
    with opened(paths[:2], "all"):
        pass
    with pytest.raises(kvring.ConfigError, match="there is no such device"):
        kvring.Connector([*paths[:2], f"{paths[2]}-misspelt"], "all")


def remount(mount_point: Path, how: str) -> None:
    """Remount, as soon as the kernel has let go of the ring that was closed just now."""
    command = ["mount", "-o", f"remount,{how}", str(mount_point)]
    until(
        "the remount",
        lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
    )
