"""`kvring bench`: where it works, several paths, block devices, and what killed runs left."""

import json
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    LoopDevice,
    bare_loop_device,
    pattern,
)
from tests.python.test_bench import SMALL, bench, bench_json, start_bench, wait_for_data

MARKER = "kvring-bench.owner"
DEVICE_BYTES = 64 * MIB


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=HANG_DEADLINE_S)


def left_overs(path: Path) -> list[Path]:
    return list(path.glob("kvring-bench-*"))


def test_several_paths_share_the_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    others = [f"--path={path}" for path in paths[1:]]
    result = bench_json(capsys, paths[0], *others, "--rw=randrw", "--verify", *SMALL)
    assert result["store_options"]["path"] == [str(path) for path in paths]
    assert not result["has_errors"]
    # Each has a capacity of its own, and stats() has the sum.
    assert result["store"]["capacity_bytes"] > 3 * 64 * MIB
    assert [list(path.iterdir()) for path in paths] == [[], [], []]


def test_what_a_killed_run_left_goes_with_the_next(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    process = start_bench(tmp_path, "--rw=write", *SMALL, "--runtime=3600")
    wait_for_data(tmp_path, process)
    (left,) = left_overs(tmp_path)
    # While it lives it is left alone, without a word.
    assert bench(tmp_path, *SMALL) == 0
    assert capsys.readouterr().err == ""
    assert left_overs(tmp_path) == [left]
    kill(process)
    assert left_overs(tmp_path) == [left]
    assert bench(tmp_path, *SMALL) == 0
    said = capsys.readouterr().err
    assert said == f"kvring bench: removed {left}, which process {process.pid} left\n"
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_ever_removed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine, foreign, linked, empty, elsewhere = (
        tmp_path / name
        for name in ("kvring-bench-mine", "kvring-bench-x", "kvring-bench-y", "kvring-bench-z", "e")
    )
    for directory in (mine, foreign, empty, elsewhere):
        directory.mkdir()
        (directory / "data").write_bytes(b"content")
    owner = {"made_by": "kvring bench", "process_id": 1, "host": platform.node()}
    (foreign / MARKER).write_text(json.dumps(owner | {"host": "another"}), encoding="utf-8")
    (empty / MARKER).touch()
    (elsewhere / MARKER).write_text(json.dumps(owner), encoding="utf-8")
    linked.symlink_to(elsewhere)
    # A FIFO must not hold it up.
    fifo = tmp_path / "kvring-bench-fifo"
    fifo.mkdir()
    os.mkfifo(fifo / MARKER)
    before = sorted(tmp_path.rglob("*"))
    assert bench(tmp_path, *SMALL) == 0
    assert sorted(tmp_path.rglob("*")) == before
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5
    for path in (mine, foreign, linked, empty, fifo):
        assert any(line.startswith(f"kvring bench: {path} is left alone: ") for line in said), path


@pytest.fixture
def device(tmp_path: Path) -> Iterator[LoopDevice]:
    """Yield a blank device."""
    with bare_loop_device(tmp_path, DEVICE_BYTES) as device:
        yield device


@pytest.mark.root
def test_a_device_takes_consent_and_is_blank_afterwards(
    capsys: pytest.CaptureFixture[str], device: LoopDevice
) -> None:
    assert bench(device.path, *SMALL) == 2
    assert "use --erase-devices" in capsys.readouterr().err
    assert not any(device.path.read_bytes())
    assert bench(device.path, "--erase-devices", "--verify", "--rw=randrw", *SMALL) == 0
    printed = capsys.readouterr()
    assert f"{device.path} is formatted now, and erased at the end" in printed.err
    assert "get" in printed.out
    assert bytes(MIB) == device.path.read_bytes()[:MIB]
    # It counts as blank again.
    kvring.Connector(device.path, "all").close()


@pytest.mark.root
def test_a_device_that_holds_something_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], device: LoopDevice
) -> None:
    with device.path.open("r+b") as file:
        file.write(b"something of somebody")
    before = device.path.read_bytes()
    assert bench(device.path, "--erase-devices", *SMALL) == 1
    assert "kvring format" in capsys.readouterr().err
    assert device.path.read_bytes() == before
    with device.path.open("r+b") as file:
        file.write(bytes(4096))
    with kvring.Connector(device.path, "all") as connector:
        Client(connector).store({"key": pattern(10_000, 1)})
        assert bench(device.path, "--erase-devices", *SMALL) == 2
    assert "holds a store" in capsys.readouterr().err
    before = device.path.read_bytes()
    assert bench(device.path, "--erase-devices", *SMALL) == 2
    assert "holds a store" in capsys.readouterr().err
    assert device.path.read_bytes() == before
