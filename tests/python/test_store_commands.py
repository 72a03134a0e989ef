"""`kvring verify`, `purge` and `resize`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring._native import StoredChunks
from kvring.cli import main
from kvring.owner_requests import ask
from tests.python.conftest import MIB, Client, bare_loop_device, make_key, pattern
from tests.support.damage import damage

CHUNK_BYTES = 100_000
KEYS = [make_key(number) for number in range(20)]
# docs/explanation/format.md
FIRST_RECORD = 4096
RECORD_BYTES = 256
MEMBER_PATHS = 2560

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kvring_command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; return its status and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def fill(client: Client, salt: str = "") -> None:
    client.store({key + salt: pattern(CHUNK_BYTES, number) for number, key in enumerate(KEYS)})


def counts(run: Run, *arguments: object, status: int = 0) -> dict[str, Any]:
    ended, out, err = run("verify", "--json", *arguments)
    assert (ended, err) == (status, "")
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("layout", ["extents", "files"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_chunk_is_found_and_named(
    open_client: Callable[..., Client],
    store_directory: Path,
    kvring_command: Run,
    layout: str,
    is_open: bool,
) -> None:
    client = open_client(layout=layout)
    fill(client)
    found = counts(kvring_command, store_directory)
    assert (found["chunks"], found["intact"]) == (20, 20)
    assert found["read_bytes"] == 20 * CHUNK_BYTES
    if not is_open:
        client.connector.close()
    (chunk,) = damage(store_directory, KEYS[7])
    found = counts(kvring_command, store_directory, status=1)
    assert (found["intact"], found["damaged"]) == (19, 1)
    (broken,) = found["broken"]
    assert broken["key"] == KEYS[7]
    assert broken["file"] == str(store_directory / chunk["file"])
    assert broken["offset_bytes"] == chunk["offset_bytes"]
    status, out, _ = kvring_command("verify", store_directory)
    assert status == 1
    assert f'damaged: "{KEYS[7]}"' in out
    # Nothing was changed.
    assert counts(kvring_command, store_directory, status=1)["damaged"] == 1


def test_repair_removes_what_is_broken_and_nothing_else(
    open_client: Callable[..., Client], store_directory: Path, kvring_command: Run
) -> None:
    client = open_client(ttl="1s", capacity="16MiB")
    fill(client)
    status, _, err = kvring_command("verify", "--repair", store_directory)
    assert status == 1
    assert f"is open in process {os.getpid()}" in err
    client.connector.close()
    damage(store_directory, KEYS[7], KEYS[8])
    document = counts(kvring_command, "--repair", store_directory)
    assert (document["damaged"], document["removed"]) == (2, 2)
    # Although a second has passed for all of them.
    found = counts(kvring_command, store_directory)
    assert (found["chunks"], found["intact"]) == (18, 18)
    client = open_client()
    present = [key for key, is_held in zip(KEYS, client.exists(KEYS), strict=True) if is_held]
    assert present == KEYS[:7] + KEYS[9:]
    client.assert_sound()


def test_repair_mends_the_index(
    open_client: Callable[..., Client], store_directory: Path, kvring_command: Run
) -> None:
    client = open_client()
    fill(client)
    client.connector.close()
    with (store_directory / "index.kvring").open("r+b") as file:
        file.seek(FIRST_RECORD + 3 * RECORD_BYTES + 100)
        file.write(b"damage")
    found = counts(kvring_command, store_directory, status=1)
    assert (found["intact"], len(found["index"])) == (19, 1)
    status, out, _ = kvring_command("verify", "--repair", store_directory)
    assert (status, "and is repaired" in out) == (0, True)
    assert counts(kvring_command, store_directory)["index"] == []


@pytest.mark.parametrize("capacities", [["16MiB", "64MiB"], ["64MiB", "16MiB", "256MiB"]])
def test_commands_on_paths_of_unlike_capacities_lose_nothing_else(
    tmp_path: Path, kvring_command: Run, capacities: list[str]
) -> None:
    """Which path owns a key follows from the capacities, which no command is told."""
    paths = [tmp_path / str(number) for number in range(len(capacities))]
    kept = {f"kept-{number}": pattern(5000, number) for number in range(400)}
    with kvring.Connector(paths, capacities) as connector:
        client = Client(connector)
        client.store(kept)
        fill(client)
        lies_in = {chunk["key"]: path for path in paths for chunk in StoredChunks(path)}
    damaged = [next(key for key in kept if lies_in[key] == path) for path in paths]
    for key in damaged:
        damage(lies_in[key], key)
    assert counts(kvring_command, "--repair", *paths)["removed"] == len(damaged)
    assert counts(kvring_command, *paths)["intact"] == 420 - len(damaged)
    model = KEYS[0].partition("@")[0]
    status, out, _ = kvring_command("purge", "--yes", "--json", "--namespace", model, *paths)
    assert (status, json.loads(out)["keys"]) == (0, 20)
    with kvring.Connector(paths, capacities) as connector:
        assert (connector.recovery["kept"], connector.recovery["moved"]) == (400 - len(damaged), 0)
        client = Client(connector)
        for key, content in kept.items():
            assert client.load(key, 5000) == (None if key in damaged else content)
        assert client.exists(KEYS) == [False] * 20


@pytest.fixture
def three_paths(tmp_path: Path) -> list[Path]:
    """Make a closed store with three paths."""
    paths = [tmp_path / name for name in "abc"]
    with kvring.Connector(paths, "64MiB") as connector:
        fill(Client(connector))
    return paths


@pytest.mark.parametrize("command", ["info", "usage", "ls", "verify", "export --output /dev/null"])
def test_what_only_reads_names_the_paths_that_are_left_out(
    three_paths: list[Path], kvring_command: Run, command: str
) -> None:
    first, second, third = three_paths
    told = f"the store has 3 paths; name also {second}, {third}\n"
    status, out, err = kvring_command(*command.split(), first)
    assert (status, told in err) == (0, True)
    assert out or "export" in command
    status, _, err = kvring_command(*command.split(), *three_paths)
    assert (status, "name also" in err) == (0, False)


def test_what_changes_a_store_refuses_without_all_paths(
    three_paths: list[Path], kvring_command: Run, tmp_path: Path
) -> None:
    first, second, third = three_paths
    archive = tmp_path / "archive.tar"
    assert kvring_command("export", *three_paths, "--output", archive)[0] == 0
    for command in (
        ("verify", "--repair"),
        ("resize", "--capacity=32MiB"),
        ("purge", "--namespace=test/model", "--yes"),
        ("import", "--capacity=64MiB", "--input", archive),
    ):
        status, _, err = kvring_command(*command, first, third)
        assert (status, f"the store has 3 paths; name also {second}\n" in err) == (1, True), err
    assert counts(kvring_command, *three_paths)["intact"] == 20


def test_a_path_is_known_by_the_name_that_it_was_opened_with_last(
    three_paths: list[Path], kvring_command: Run, tmp_path: Path
) -> None:
    first, second, third = three_paths
    second.rename(renamed := tmp_path / "renamed")
    three_paths[1] = renamed
    with kvring.Connector(three_paths, "64MiB"):
        pass
    assert f"name also {third}, {renamed}\n" in kvring_command("info", first)[2]
    # One that is left out on purpose is no sibling any more.
    with kvring.Connector(three_paths[:2], "64MiB"):
        pass
    assert f"the store has 2 paths; name also {renamed}\n" in kvring_command("info", first)[2]


def test_paths_whose_names_are_damaged_are_counted(
    three_paths: list[Path], kvring_command: Run
) -> None:
    with (three_paths[0] / "index.kvring").open("r+b") as index:
        index.seek(MEMBER_PATHS)
        index.write(b"damage")
    _, out, err = kvring_command("info", three_paths[0])
    assert "the store has 3 paths; name also 2 others, as LMCache's JSON has it" in err
    assert "not known" in out
    # The next open mends it.
    with kvring.Connector(three_paths, "64MiB"):
        pass
    assert f"name also {three_paths[1]}, " in kvring_command("info", three_paths[0])[2]
    assert counts(kvring_command, *three_paths)["intact"] == 20


def test_of_several_paths_the_sum_is_told_and_one_that_is_away_hides_no_other(
    three_paths: list[Path], kvring_command: Run
) -> None:
    documents = json.loads(kvring_command("info", "--json", *three_paths)[1])
    assert [one["path"] for one in documents] == [str(path) for path in three_paths]
    assert sum(one["keys"] for one in documents) == 20
    usage = json.loads(kvring_command("usage", "--json", *three_paths)[1])["namespaces"]
    assert [one["keys"] for one in usage.values()] == [20]
    listed = kvring_command("ls", "--json", *three_paths)[1].splitlines()
    assert {json.loads(line)["key"] for line in listed} == set(KEYS)
    three_paths[1].rename(three_paths[1].with_name("away"))
    for command in ("info", "usage", "ls", "verify"):
        status, out, err = kvring_command(command, *three_paths)
        assert (status, f"there is no store in {three_paths[1]}" in out + err) == (1, True)
        assert str(three_paths[2]) in out or command in ("usage", "verify")
    intact = json.loads(kvring_command("verify", "--json", *three_paths)[1])["intact"]
    assert intact == sum(one["keys"] for one in documents) - documents[1]["keys"]


def test_a_device_is_verified(tmp_path: Path, kvring_command: Run) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        with kvring.Connector(device.path, "all") as connector:
            fill(Client(connector))
        assert counts(kvring_command, device.path)["intact"] == 20
        damage(device.path, KEYS[4])
        assert counts(kvring_command, device.path, status=1)["damaged"] == 1
        assert counts(kvring_command, "--repair", device.path)["removed"] == 1
        assert counts(kvring_command, device.path)["intact"] == 19


def test_wrong_arguments_and_places_are_named(tmp_path: Path, kvring_command: Run) -> None:
    status, _, err = kvring_command("verify", tmp_path / "none")
    assert (status, "nothing is there" in err) == (1, True)
    status, _, err = kvring_command("verify", tmp_path)
    assert (status, "no index.kvring" in err) == (1, True)
    assert not list(tmp_path.iterdir())
    for command in ("verify", "purge", "resize"):
        assert kvring_command(command)[0] == 2
    status, _, err = kvring_command("verify", "--rate=fast", tmp_path)
    assert (status, "does not begin with a number" in err) == (2, True)
    # It would never end.
    status, _, err = kvring_command("verify", "--rate=0", tmp_path)
    assert (status, "'0' is less than 1 B" in err) == (2, True)
    for command in ("verify", "export"):
        status, _, err = kvring_command(command, tmp_path, f"{tmp_path}/")
        assert (status, "named 2 times" in err) == (2, True)
        status, _, err = kvring_command(command, "")
        assert (status, "it is empty" in err) == (2, True)


@pytest.mark.parametrize("is_open", [False, True])
def test_purge_takes_a_namespace_and_leaves_the_rest(
    open_client: Callable[..., Client], store_directory: Path, kvring_command: Run, is_open: bool
) -> None:
    client = open_client()
    fill(client)
    fill(client, "@tenant")
    client.connector.pin([KEYS[0] + "@tenant"])
    if not is_open:
        client.connector.close()
    arguments = ("purge", "--namespace", "test/model@tenant", store_directory)
    status, out, err = kvring_command(*arguments)
    assert (status, "has 20 chunks" in out) == (1, True)
    assert "use --yes" in err
    status, out, err = kvring_command(*arguments, "--yes")
    # Pins are those of an open store.
    assert status == (4 if is_open else 0)
    assert ("19 chunks" in out, "1 chunk is pinned" in err) == (is_open, is_open)
    left = [chunk["namespace"] for chunk in StoredChunks(store_directory)]
    assert left.count("test/model") == 20
    assert left.count("test/model@tenant") == int(is_open)
    status, _, err = kvring_command("purge", "--namespace", "none", "--yes", store_directory)
    assert (status, "no namespace 'none'" in err) == (1, True)


def test_purge_goes_on_by_itself_where_the_owner_goes_away(
    open_client: Callable[..., Client],
    store_directory: Path,
    kvring_command: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = open_client()
    for salt in ("", "@one", "@two"):
        fill(client, salt)

    def ask_and_close(
        path: Path, index_path: Path | None, request: dict[str, Any], **options: Any
    ) -> Any:
        answer = ask(path, index_path, request, **options)
        if request["ask"] == "purge":
            client.connector.close()
        return answer

    monkeypatch.setattr("kvring.cli.owner.ask", ask_and_close)
    status, out, err = kvring_command("purge", "--model=test/model", "--yes", store_directory)
    assert (status, "removed 60 chunks" in out, err) == (0, True, "")
    assert list(StoredChunks(store_directory)) == []


def test_resize_tells_what_is_lost_and_gives_back_the_space(
    open_client: Callable[..., Client], store_directory: Path, kvring_command: Run
) -> None:
    client = open_client("64MiB", lease_s=0)
    for number in range(48):
        client.store({make_key(number): pattern(MIB, number)})
    client.connector.close()
    status, out, err = kvring_command("resize", "--capacity=32MiB", store_directory)
    assert (status, "use --yes" in err) == (1, True)
    assert "holds 48 chunks" in out
    assert len(list(StoredChunks(store_directory))) == 48
    status, out, _ = kvring_command("resize", "--capacity=32MiB", "--yes", store_directory)
    left = len(list(StoredChunks(store_directory)))
    assert (status, f"{48 - left} were evicted" in out) == (0, True)
    assert 16 <= left < 32
    assert sum(one.stat().st_blocks * 512 for one in store_directory.iterdir()) <= 32 * MIB
    status, _, _ = kvring_command("resize", "--capacity=1GiB", store_directory)
    assert (status, len(list(StoredChunks(store_directory)))) == (0, left)
    status, _, err = kvring_command("resize", "--capacity=1KiB", "--yes", store_directory)
    assert (status, "capacity" in err) == (2, True)


@pytest.mark.parametrize("command", ["stats", "top", "size", "doctor"])
def test_a_second_path_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "/mnt/a", "/mnt/b"]) == 2
    told = capsys.readouterr().err
    assert told == f"kvring {command}: it takes one PATH, and 2 are given: run it for each\n"
