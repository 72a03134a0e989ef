"""`kvring resize` of stores that are open and closed."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring._native import StoredChunks
from kvring.cli import main, resizing
from tests.python.conftest import (
    MIB,
    Client,
    bare_loop_device,
    make_key,
    pattern,
    run_child,
    until,
)

Run = Callable[..., tuple[int, str, str]]

COUNT = 160
KEYS = [make_key(number) for number in range(COUNT)]


@pytest.fixture
def kvring_command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kvring resize` in this process; return its status and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["resize", *(str(argument) for argument in arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def taken_bytes(directory: Path) -> int:
    """Return what a store takes on disk."""
    return sum(one.lstat().st_blocks * 512 for one in directory.rglob("*"))


def fill(client: Client) -> None:
    client.store({key: pattern(MIB, number) for number, key in enumerate(KEYS)})


@pytest.mark.parametrize("layout", ["extents", "files"])
def test_the_owner_brings_its_store_down_and_lets_it_grow(
    open_client: Callable[..., Client], store_directory: Path, kvring_command: Run, layout: str
) -> None:
    client = open_client("256MiB", lease_s=0, layout=layout)
    fill(client)
    status, out, err = kvring_command(store_directory, "--capacity=96MiB")
    assert (status, "160 chunks" in out) == (1, True)
    assert "beyond the capacity" in err
    assert "use --yes" in err
    status, out, _ = kvring_command(store_directory, "--capacity=96MiB", "--dry-run")
    assert (status, client.stat("keys")) == (0, COUNT)
    lost = int(out.split(" chunks")[1].split()[-1])
    status, out, _ = kvring_command(store_directory, "--capacity=96MiB", "--yes")
    kept = client.stat("keys")
    assert (status, f"{COUNT - kept} were evicted" in out) == (0, True)
    # What was told before, and at most the 4 % that are free in a full store.
    assert lost - 2 <= COUNT - kept <= lost + 6
    assert client.stat("capacity_bytes") == 96 * MIB
    until("files that are gone", lambda: taken_bytes(store_directory) <= 96 * MIB)
    client.assert_sound()
    # Nothing is lost, and nobody is asked.
    status, out, _ = kvring_command(store_directory, "--capacity=400MiB", "--json")
    assert status == 0
    printed = json.loads(out)
    assert (printed["keys"], printed["evicted"]) == (kept, 0)
    fill(client)
    assert (client.stat("keys"), client.stat("evicted")) == (COUNT, COUNT - kept)
    client.connector.close()
    client = open_client("400MiB", lease_s=0, layout=layout)
    assert client.connector.recovery["kept"] == COUNT


def test_pinned_chunks_stay_and_it_is_told(
    open_client: Callable[..., Client],
    store_directory: Path,
    kvring_command: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resizing, "_STUCK_S", 0.5)
    client = open_client("256MiB", lease_s=0, layout="extents")
    fill(client)
    # One at least is in each data file.
    assert all(client.connector.pin(KEYS[::8]))
    status, out, err = kvring_command(store_directory, "--capacity=64MiB", "--yes")
    assert (status, "beyond the capacity are not free yet: 20.0 MiB are pinned" in err) == (4, True)
    assert all(client.load(key, MIB) is not None for key in KEYS[::8])
    assert all(client.connector.unpin(KEYS[::8]))
    until("the rest", lambda: client.stat("used_bytes") <= 64 * MIB)
    status, out, _ = kvring_command(store_directory, "--capacity=64MiB", "--yes")
    assert (status, "of 64.0 MiB; 0 were evicted" in out) == (0, True)


def test_what_cannot_be_is_refused_in_a_sentence(
    open_client: Callable[..., Client],
    store_directory: Path,
    kvring_command: Run,
    tmp_path: Path,
) -> None:
    client = open_client("64MiB")
    client.store({make_key(1): pattern(MIB, 1)})
    status, _, err = kvring_command(store_directory, "--capacity=1PiB")
    assert (status, "free space there, or take less" in err) == (1, True)
    assert client.stat("capacity_bytes") == 64 * MIB
    status, _, err = kvring_command(store_directory, "--capacity=much")
    assert (status, "'much' is not valid: it does not begin with a number" in err) == (2, True)
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        status, _, err = kvring_command(device.path, "--capacity=32MiB")
        assert (status, "changed when it is opened" in err) == (1, True)


def test_a_closed_store_gets_no_more_than_its_disk_has(
    open_client: Callable[..., Client], store_directory: Path, kvring_command: Run
) -> None:
    open_client("64MiB").connector.close()
    status, out, err = kvring_command(store_directory, "--capacity=1PiB", "--yes")
    assert (status, out) == (1, "")
    assert "--capacity 1.0 PiB is more than the file system of" in err
    assert "free space there, or take less" in err


def test_an_open_store_is_reduced_where_the_disk_is_full(
    client: Client, store_directory: Path, kvring_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses less than the new capacity, and the disk has no more for it."""
    full = shutil.disk_usage(store_directory)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    status, _, err = kvring_command(store_directory, "--capacity=96MiB", "--yes")
    assert (status, err) == (0, "")
    assert client.stat("capacity_bytes") == 96 * MIB


def test_a_resize_that_another_one_replaces_says_so(
    client: Client, store_directory: Path, kvring_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = resizing._wait

    def other_first(
        all_stats: Iterator[dict[str, Any]], paths: Sequence[Path]
    ) -> tuple[dict[str, Any], str]:
        client.connector.change_limits(capacity="96MiB")
        return wait(all_stats, paths)

    monkeypatch.setattr(resizing, "_wait", other_first)
    status, out, err = kvring_command(store_directory, "--capacity=128MiB", "--yes")
    assert (status, "evicted" in out) == (1, False)
    assert "has another capacity, 96.0 MiB: another resize came meanwhile" in err


def test_a_dry_run_refuses_stores_that_do_not_become_one(
    tmp_path: Path, kvring_command: Run
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        with kvring.Connector(path, "64MiB") as store:
            Client(store).store({make_key(number): pattern(MIB, number) for number in range(4)})
    for option in ("--dry-run", "--yes"):
        status, _, err = kvring_command(*paths, "--capacity=64MiB", option)
        assert (status, "they do not become one store" in err) == (1, True)
        assert "would be removed" not in err


def test_several_paths_change_together(tmp_path: Path, kvring_command: Run) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    store = kvring.Connector([str(path) for path in paths], ["128MiB", "64MiB"], lease_s=0)
    with store:
        fill(Client(store))
        status, _, err = kvring_command(paths[0], "--capacity=64MiB", "--yes")
        assert (status, f"name also {paths[1]}" in err) == (1, True)
        status, _, err = kvring_command(*paths, "--capacity=64MiB", "--yes")
        assert (status, "another proportion" in err) == (1, True)
        assert store.limits()["capacity_bytes"] == {
            str(paths[0]): 128 * MIB,
            str(paths[1]): 64 * MIB,
        }
        # In any order, by names of its own.
        named = [paths[1], paths[0] / ".." / "a"]
        sizes = ["--capacity=32MiB", "--capacity=64MiB"]
        status, _, err = kvring_command(*named, *sizes, "--yes")
        assert (status, err.count("beyond the capacity")) == (0, 2)
        assert store.limits()["capacity_bytes"] == {
            str(paths[0]): 64 * MIB,
            str(paths[1]): 32 * MIB,
        }
        assert store.check()["problems"] == []


def shrink_and_die(directory: str, layout: str, delay_s: float) -> None:
    store = kvring.Connector(directory, "256MiB", lease_s=0, layout=layout)
    fill(Client(store))
    store.change_limits(capacity="64MiB")
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("layout", ["extents", "files"])
@pytest.mark.parametrize("capacity", ["64MiB", "256MiB"])
@pytest.mark.parametrize("delay_ms", [0, 2, 10])
def test_a_kill_in_the_middle_leaves_a_good_store(
    open_client: Callable[..., Client],
    store_directory: Path,
    layout: str,
    capacity: str,
    delay_ms: int,
) -> None:
    died = run_child(shrink_and_die, str(store_directory), layout, delay_ms / 1000)
    assert died.returncode == -signal.SIGKILL, died.stderr
    client = open_client(capacity, lease_s=0, layout=layout)
    assert client.connector.recovery["reset"] is None
    for number, key in enumerate(KEYS):
        assert client.load(key, MIB) in (None, pattern(MIB, number))
    fill(client)
    assert client.stat("keys") == COUNT or capacity == "64MiB"
    assert taken_bytes(store_directory) <= (64 if capacity == "64MiB" else 256) * MIB
    client.connector.close()
    assert len(list(StoredChunks(store_directory))) == client.stat("keys")
