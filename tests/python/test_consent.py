"""Commands that may remove chunks: they compute it from the files, show it, and ask."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import kvring
from kvring._native import StoredChunks, forecast_open
from kvring.cli import main
from tests.python.conftest import MIB, Client, make_key, pattern

CHUNKS = {make_key(number): pattern(MIB, number) for number in range(100)}
LAYOUTS = pytest.mark.parametrize("layout", ["extents", "files"])


def fill(paths: Sequence[Path], capacity: int | list[int], **options: object) -> None:
    """Store all chunks, and close the store."""
    with kvring.Connector(paths, capacity, lease_s=0, **options) as connector:
        client = Client(connector)
        for key, content in CHUNKS.items():
            client.store({key: content})


def keys_of(*paths: Path) -> set[str]:
    return {chunk["key"] for path in paths for chunk in StoredChunks(path)}


def archive_with_one_chunk(tmp_path: Path) -> Path:
    source, archive = tmp_path / "source", tmp_path / "archive.tar"
    with kvring.Connector(source, "64MiB") as connector:
        Client(connector).store({"one": b"bytes"})
    assert main(["export", str(source), "--output", str(archive)]) == 0
    return archive


def removed_of(document: str) -> int:
    printed: dict[str, int] = json.loads(document)
    return printed["keys"]


@LAYOUTS
@pytest.mark.parametrize("command", ["import", "adopt", "resize"])
def test_a_smaller_capacity_is_asked_about_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, command: str
) -> None:
    target = tmp_path / "target"
    fill([target], 512 * MIB, layout=layout)
    arguments = [str(target), "--capacity=64MiB"]
    if command == "import":
        arguments += ["--input", str(archive_with_one_chunk(tmp_path))]
    elif command == "adopt":
        source = tmp_path / "lmcache"
        source.mkdir()
        (source / "a@0x01000100@0@00ff.data").write_bytes(b"x")
        arguments.insert(0, str(source))
    arguments.insert(0, command)
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert "no terminal to confirm it: nothing was changed; use --yes" in printed.err
    assert "beyond the capacity" in printed.err
    capsys.readouterr()
    assert main([*arguments, "--dry-run", "--json"]) == 0
    removed = removed_of(capsys.readouterr().out)
    assert keys_of(target) == set(CHUNKS)
    assert 36 < removed < 70
    if command == "resize":
        assert main([*arguments, "--yes"]) == 0
        assert len(CHUNKS) - len(keys_of(target)) == removed


@LAYOUTS
@pytest.mark.parametrize("capacity_mib", [16, 40, 100, 104, 128, 200])
def test_the_forecast_is_what_the_open_does(tmp_path: Path, layout: str, capacity_mib: int) -> None:
    fill([tmp_path / "store"], 256 * MIB, layout=layout)
    options = {"layout": layout, "ttl": "off", "min_free": 0}
    (forecast,) = forecast_open(tmp_path / "store", capacity_mib * MIB, **options)
    assert forecast["stored"] == (100, 100 * MIB)
    with kvring.Connector(tmp_path / "store", capacity_mib * MIB, **options) as connector:
        gone = 100 - connector.stats()["keys"]
    assert forecast["beyond_capacity"] == (gone, gone * MIB)
    assert (forecast["moved"], forecast["stale"], forecast["expired"]) == ((0, 0),) * 3


def test_a_mistyped_second_path_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, typo = tmp_path / "target", tmp_path / "tarte"
    fill([target], 512 * MIB)
    archive = archive_with_one_chunk(tmp_path)
    arguments = ["import", str(target), str(typo), "--capacity=512MiB", "--input", str(archive)]
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert f"{typo} has no store: one would be made there" in printed
    assert "of other paths" in printed
    assert not typo.exists()
    assert keys_of(target) == set(CHUNKS)


def test_paths_of_unequal_capacities_keep_their_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    fill(paths, [256 * MIB, 1024 * MIB])
    archive = archive_with_one_chunk(tmp_path)
    arguments = ["import", *map(str, paths), "--input", str(archive)]
    assert main([*arguments, "--capacity=1GiB"]) == 1
    assert "of other paths" in capsys.readouterr().err
    forecasts = forecast_open([str(path) for path in paths], "1GiB", ttl="off")
    assert keys_of(*paths) == set(CHUNKS)
    assert main([*arguments, "--capacity=256MiB", "--capacity=1GiB"]) == 0
    assert keys_of(*paths) == {*CHUNKS, "one"}
    assert main(["resize", *map(str, paths), "--capacity=1GiB", "--yes"]) == 0
    moved = sum(one["moved"][0] for one in forecasts)
    assert 101 - len(keys_of(*paths)) in (moved, moved + 1)
    three = ["--capacity=1GiB"] * 3
    assert main(["resize", *map(str, paths), *three]) == 2
    assert "--capacity is given 3 times for 2 paths" in capsys.readouterr().err


def lmcache_files(directory: Path, count: int) -> dict[str, Path]:
    """Make chunk files as LMCache's fs does; return them by key."""
    directory.mkdir()
    made = {}
    for number in range(count):
        path = directory / f"a@0x01000100@0@{number:04x}.data"
        path.write_bytes(pattern(MIB, number))
        made[f"a@01000100@0@{number:04x}"] = path
    return made


@LAYOUTS
def test_adopt_moves_nothing_that_finds_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    source, target = tmp_path / "lmcache", tmp_path / "target"
    files = lmcache_files(source, 60)
    arguments = [str(source), str(target), "--capacity=32MiB", "--layout", layout, "--move"]
    assert main(["adopt", *arguments, "--yes"]) == 4
    assert "chunks were not stored" in capsys.readouterr().err
    stored = keys_of(target)
    assert 8 <= len(stored) < 32
    assert {key for key, path in files.items() if not path.exists()} == stored


def test_import_evicts_only_if_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, archive = tmp_path / "more", tmp_path / "target", tmp_path / "more.tar"
    fill([source], 512 * MIB)
    assert main(["export", str(source), "--output", str(archive)]) == 0
    old = {f"old-{number}": pattern(MIB, 1000 + number) for number in range(40)}
    with kvring.Connector(target, "64MiB") as connector:
        Client(connector).store(old)
    arguments = ["import", str(target), "--capacity=64MiB", "--input", str(archive)]
    capsys.readouterr()
    assert main(arguments) == 4
    told = capsys.readouterr().err.splitlines()
    # Not a line for each of hundreds: one for each reason, and their number.
    assert 2 <= len(told) <= 6, told
    assert "chunks were not stored, such as '" in told[0]
    assert "store full" in told[0]
    assert keys_of(target) >= set(old)
    # What was stored before, or the archive itself, is no longer whole.
    assert main([*arguments, "--yes"]) == 4
    assert "evicted for want of room" in capsys.readouterr().err
    assert not keys_of(target) >= set(old)


def test_a_lost_index_is_not_begun_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "target"
    fill([target], 256 * MIB)
    archive = archive_with_one_chunk(tmp_path)
    (target / "index.kvring").rename(tmp_path / "kept")
    arguments = ["import", str(target), "--capacity=256MiB", "--yes", "--input", str(archive)]
    assert main(arguments) == 1
    assert "no index.kvring" in capsys.readouterr().err
    (tmp_path / "kept").rename(target / "index.kvring")
    assert keys_of(target) == set(CHUNKS)


@pytest.mark.parametrize("is_open", [False, True])
def test_purge_wants_all_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_open: bool
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    fill(paths, 256 * MIB)
    arguments = ["purge", "--namespace=test/model", "--yes"]

    def purge() -> None:
        assert main([*arguments, str(paths[0])]) == 1
        told = f"the store has 2 paths; name also {paths[1]}"
        assert told in capsys.readouterr().err
        assert main([*arguments, "--dry-run", *map(str, paths)]) == 0
        assert "100 chunks" in capsys.readouterr().out
        assert keys_of(*paths) == set(CHUNKS)
        assert main([*arguments, *map(str, paths)]) == 0

    if is_open:
        with kvring.Connector(paths, 256 * MIB):
            purge()
    else:
        purge()
    assert keys_of(*paths) == set()


@pytest.mark.parametrize("command", ["purge", "export", "ls"])
def test_an_unknown_namespace_is_named_with_those_that_exist(
    open_client: Callable[..., Client],
    store_directory: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    open_client().store({make_key(0): b"x", make_key(1, "tenant"): b"y"})
    assert main([command, str(store_directory), "--namespace=test/modle"]) == 1
    printed = capsys.readouterr().err
    assert "no namespace 'test/modle'" in printed
    assert "'test/model'" in printed
    assert "'test/model@tenant'" in printed


def test_a_path_that_was_away_is_not_emptied_by_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    fill(paths, 256 * MIB)
    with kvring.Connector(paths[0], 256 * MIB):
        pass
    before = keys_of(paths[1])
    assert before
    arguments = ["purge", "--namespace=test/model", "--yes", *map(str, paths)]
    assert main(arguments) == 1
    assert "the path was away" in capsys.readouterr().err
    assert keys_of(paths[1]) == before
