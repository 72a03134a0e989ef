"""`kvring usage`: what is written to drives, and how long they last."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli import main
from kvring.cli.doctor import drive
from kvring.mounts import mount_of
from kvring.owner_requests import ask
from tests.python.conftest import MIB, Client, bare_loop_device, make_key, make_memory, pattern

CONTENT = pattern(MIB, 1)
DRIVE_BYTES = 1 << 40


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Have drives of 1 TiB: nvme0n1, or the one that is given for the name of a path."""
    drive_of: dict[str, str] = {}

    def below(path: Path) -> Path:
        device = tmp_path / "sysfs" / drive_of.get(path.name, "nvme0n1")
        device.mkdir(parents=True, exist_ok=True)
        (device / "size").write_text(f"{DRIVE_BYTES // 512}\n", encoding="ascii")
        return device

    monkeypatch.setattr("kvring.cli.endurance.device_below", below)
    return drive_of


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """Return what --json prints, without namespaces."""
    capsys.readouterr()
    assert main(["usage", "--json", *map(str, arguments)]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document.keys() == {"namespaces", "writes", "writes_unknown"}
    return document


def wait_for_a_rate(client: Client) -> None:
    client.wait_until(lambda: client.stat("open_s") >= 1)


@pytest.mark.usefixtures("drives")
def test_the_life_of_a_drive_follows_from_what_is_written(
    client: Client, store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [make_key(number) for number in range(20)]
    client.store(dict.fromkeys(keys, CONTENT))
    wait_for_a_rate(client)
    writes = told(capsys, store_directory)["writes"]
    assert (writes["written_bytes"], writes["written_per_loaded_byte"]) == (20 * MIB, None)
    assert capsys.readouterr().out == ""
    assert main(["usage", str(store_directory)]) == 0
    assert "nothing was loaded" in capsys.readouterr().out
    client.get(keys[:5], [make_memory(MIB) for _ in range(5)])
    writes = told(capsys, store_directory, "--dwpd=3")["writes"]
    assert writes["written_per_loaded_byte"] == 4
    assert writes["over_s"] >= 1
    per_day = 20 * MIB * 86_400 / writes["over_s"]
    assert writes["written_bytes_per_day"] == pytest.approx(per_day)
    (only,) = writes["drives"]
    assert only == {
        "drive": "/dev/nvme0n1",
        "paths": [str(store_directory)],
        "size_bytes": DRIVE_BYTES,
        "rated_bytes": DRIVE_BYTES * 3 * 365 * 5,
        "written_bytes": 20 * MIB,
        "written_bytes_per_day": pytest.approx(per_day),
        "lasts_years": pytest.approx(DRIVE_BYTES * 3 * 5 / per_day),
    }
    assert main(["usage", "--dwpd=3", str(store_directory)]) == 0
    shown = capsys.readouterr().out
    assert "20.0 MiB since the open" in shown
    assert "4.00 bytes" in shown
    assert "rated for 3 DWPD" in shown
    (row,) = [line.split() for line in shown.splitlines() if "/dev/nvme0n1" in line]
    assert row[:2] == ["1.0", "TiB"]
    assert row[-2] == "years"
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


@pytest.mark.usefixtures("drives")
def test_what_was_not_written_is_told(
    open_client: Callable[..., Client], store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = open_client(admit="second_use", write_budget="1GiB")
    chunks = {make_key(number): CONTENT for number in range(50)}
    client.store(chunks)
    wait_for_a_rate(client)
    assert main(["usage", str(store_directory)]) == 0
    shown = capsys.readouterr().out
    assert "50.0 MiB by admit, 0 B by write_budget" in shown
    assert "unwritten" in shown
    client.store(chunks)
    writes = told(capsys, store_directory)["writes"]
    assert writes["not_admitted_bytes"] == 50 * MIB
    assert 0 < writes["over_write_budget_bytes"] == 50 * MIB - writes["written_bytes"]


def test_each_drive_has_what_was_written_to_it(
    drives: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name for name in ("one", "two", "three")]
    drives.update(two="nvme1n1", three="nvme1n1")
    with kvring.Connector(paths, ["64MiB", "64MiB", "128MiB"]) as connector:
        client = Client(connector)
        client.store({make_key(number): CONTENT for number in range(40)})
        wait_for_a_rate(client)
        one, two = told(capsys, paths[1])["writes"]["drives"]
        by_path = [path["written_bytes"] for path in client.connector.stats()["paths"]]
    assert (one["drive"], one["paths"]) == ("/dev/nvme0n1", [str(paths[0])])
    assert (two["drive"], two["paths"]) == ("/dev/nvme1n1", [str(path) for path in paths[1:]])
    assert min(by_path) > 0
    assert [one["written_bytes"], two["written_bytes"]] == [by_path[0], sum(by_path[1:])]
    assert sum(by_path) == 40 * MIB
    assert one["size_bytes"] == two["size_bytes"] == DRIVE_BYTES


def test_only_an_owner_tells_what_is_written(
    client: Client,
    store_directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.store({make_key(1): CONTENT})

    def ask_an_older_one(*arguments: Any, **options: Any) -> Any:
        answer = ask(*arguments, **options)
        return {**answer, "version": "0.0.1", "stats": {}}

    with monkeypatch.context() as patched:
        patched.setattr("kvring.cli.owner.ask", ask_an_older_one)
        document = told(capsys, store_directory)
    assert document["writes"] is None
    assert "kvring 0.0.1, which has" in document["writes_unknown"]
    client.connector.close()
    document = told(capsys, store_directory)
    assert (document["writes"], len(document["namespaces"])) == (None, 1)
    assert document["writes_unknown"].startswith(f"nobody has {store_directory} open")
    assert main(["usage", str(store_directory)]) == 0
    assert f"writes are not known: nobody has {store_directory} open" in capsys.readouterr().out


@pytest.mark.parametrize("dwpd", ["0", "-1", "nan", "inf", "100.5", "one"])
def test_a_rating_that_no_drive_has_is_refused(
    client: Client, store_directory: Path, capsys: pytest.CaptureFixture[str], dwpd: str
) -> None:
    client.store({make_key(1): CONTENT})
    assert main(["usage", f"--dwpd={dwpd}", str(store_directory)]) == 2
    said = capsys.readouterr().err
    assert "--dwpd" in said
    assert dwpd in said
    assert dwpd == "one" or "at most 100; the drive's data sheet" in said


def test_the_size_is_that_of_the_device_or_of_the_file_system(
    client: Client,
    store_directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.store({make_key(1): CONTENT})
    wait_for_a_rate(client)
    monkeypatch.setattr("kvring.cli.endurance.device_below", lambda _: None)
    (only,) = told(capsys, store_directory)["writes"]["drives"]
    mount = mount_of(store_directory)
    assert mount is not None
    assert only["drive"] == f"file system of {mount.mount_point}"
    assert only["size_bytes"] > 256 * MIB
    monkeypatch.undo()
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        with kvring.Connector(device.path, "all") as connector:
            client = Client(connector)
            client.store({make_key(1): CONTENT})
            wait_for_a_rate(client)
            (only,) = told(capsys, device.path)["writes"]["drives"]
        assert (only["drive"], only["size_bytes"]) == (str(device.path), 64 * MIB)


def test_a_partition_counts_as_its_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = tmp_path / "nvme0n1" / "nvme0n1p1"
    partition.mkdir(parents=True)
    number = tmp_path.stat().st_dev
    (tmp_path / f"{os.major(number)}:{os.minor(number)}").symlink_to(partition)
    monkeypatch.setattr(drive, "_DEVICES", tmp_path)
    assert drive.device_below(tmp_path) == partition
    (partition / "partition").write_text("1\n", encoding="ascii")
    assert drive.device_below(tmp_path) == partition.parent
    assert drive.drives_below(tmp_path) == [partition.parent]
