"""`kvring ls`: what a store holds, and what of it is broken."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli import main
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, make_key, pattern

VERSION_OFFSET = 8


def ls(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `kvring ls`."""
    return subprocess.run(
        [sys.executable, "-m", "kvring", "ls", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_DEADLINE_S,
    )


def listed(*arguments: object) -> list[dict[str, Any]]:
    """Return what `kvring ls --json` prints."""
    done = ls("--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return what is in a directory, and when it was changed last."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def broken(path: Path, *arguments: object) -> str:
    """Return what is said of a store in which something is broken, and see that it stays so."""
    before = contents(path) if path.is_dir() else {}
    done = ls(path, *arguments)
    assert done.returncode == 1, done
    assert all(line.startswith("kvring ls: ") for line in done.stderr.splitlines())
    assert (contents(path) if path.is_dir() else {}) == before
    return done.stderr


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def put_directory(index: Path) -> None:
    index.unlink()
    index.mkdir()


def put_fifo(index: Path) -> None:
    index.unlink()
    os.mkfifo(index)


def put_link(index: Path) -> None:
    index.rename(index.with_name("other"))
    index.symlink_to("other")


@pytest.fixture
def store(store_directory: Path) -> Path:
    """A closed store with eight chunks in data files."""
    with kvring.Connector(store_directory, 64 * MIB, layout="extents") as connector:
        Client(connector).store({make_key(seed): pattern(10_000, seed) for seed in range(8)})
    return store_directory


@pytest.mark.parametrize("layout", ["files", "extents"])
def test_ls_tells_what_is_stored(
    open_client: Callable[..., Client], store_directory: Path, layout: str
) -> None:
    client = open_client(layout=layout)
    chunks = {
        make_key(1): pattern(5000, 1),
        make_key(2, "tenant"): pattern(70_001, 2),
        "long" * 1000: pattern(1, 3),
        "line\nend": pattern(4096, 4),
    }
    client.store(chunks)
    assert client.load(make_key(1), 5000) == chunks[make_key(1)]
    # While the owner is at work, and afterwards.
    for _ in range(2):
        found = {one["key"]: one for one in listed(store_directory)}
        assert found.keys() == chunks.keys()
        for key, content in chunks.items():
            assert found[key]["length_bytes"] == len(content)
            with Path(found[key]["file"]).open("rb") as file:
                file.seek(found[key]["offset_bytes"])
                assert file.read(len(content)) == content
                assert layout == "extents" or file.read() == b""
        assert found[make_key(1)]["last_used_ms"] >= found[make_key(1)]["created_ms"]
        client.connector.close()
    # Written behind the use, by close() at the latest.
    assert {one["key"]: one["uses"] for one in listed(store_directory)}[make_key(1)] == 1
    salted = listed(store_directory, "--namespace", "test/model@tenant")
    assert [one["key"] for one in salted] == [make_key(2, "tenant")]
    assert [one["key"] for one in listed(store_directory, "--key-prefix", "lo")] == ["long" * 1000]
    if layout == "files":
        by_file = listed(store_directory, "--file", salted[0]["file"])
        assert by_file == salted
    table = ls(store_directory).stdout.splitlines()
    assert table[0].split() == ["BYTES", "AGE", "UNUSED", "USES", "NAMESPACE", "FILE", "KEY"]
    assert len(table) == 1 + len(chunks)
    line = next(line for line in table if line.endswith(f"  {make_key(1)}"))
    assert line.split()[0] == "5000"
    assert line.split()[3:5] == ["1", "test/model"]


def test_where_there_is_no_store(tmp_path: Path) -> None:
    nowhere, file, empty = (tmp_path / name for name in ("nowhere", "file", "empty"))
    file.write_bytes(b"content")
    empty.mkdir()
    assert broken(nowhere) == f"kvring ls: there is no store in {nowhere}: nothing is there\n"
    assert "it is a file; give a directory" in broken(file)
    assert broken(empty) == f"kvring ls: there is no store in {empty}: it has no index.kvring\n"
    assert "character device" in broken(Path("/dev/null"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda index: index.write_bytes(b"something else" * 1000), "it is not a kvring index"),
        (
            lambda index: overwrite(index, 20, b"\xff"),
            "its header is damaged; put back a copy of it, or open the store: it begins a new",
        ),
        (lambda index: overwrite(index, VERSION_OFFSET, b"\x09"), "format version 9"),
        (lambda index: os.truncate(index, 100), "shorter than its header"),
        (lambda index: os.truncate(index, 0), "shorter than its header"),
        (lambda index: index.unlink(), "there are data files, but no index.kvring"),
        (put_directory, "a directory, not a regular file"),
        (put_fifo, "a FIFO, not a regular file"),
        (put_link, "a symbolic link, not a regular file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_index_that_is_none(store: Path, damage: Callable[[Path], object], said: str) -> None:
    damage(store / "index.kvring")
    assert said in broken(store)


@pytest.mark.parametrize("name", ["index.kvring", "data-00000.kvring"])
def test_nobody_who_reads_waits_for_a_fifo(
    store_directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with kvring.Connector(store_directory, "64MiB") as connector:
        Client(connector).store({make_key(1): pattern(5000, 1)})
    (store_directory / name).unlink()
    os.mkfifo(store_directory / name)
    for word in ("ls", "info", "usage", "verify"):
        assert main([word, str(store_directory)]) == 1
        assert str(store_directory) in "".join(capsys.readouterr())
