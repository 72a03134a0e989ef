"""`kvring export`, `import` and `adopt`."""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from kvring._native import StoredChunks
from kvring.cli import main
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, bare_loop_device, make_key, pattern
from tests.support.damage import damage

# A key may be anything, and as long as this.
# The last one of a batch is stored, and archived, first.
CONTENTS = {
    "long" + "é" * 2046: pattern(3 * MIB + 1, 5),
    "é\n\x01=\\ \u4e2d": b"x",
    **{make_key(number, "tenant"): pattern(4096 + number, number) for number in range(4)},
    **{make_key(number): pattern(100_000, number) for number in range(12)},
}


def held(path: Path) -> dict[str, bytes | None]:
    """Return what a store holds, as its own disk has it."""
    chunks = StoredChunks(path)
    return {chunk["key"]: chunks.read(keep=True)[2] for chunk in chunks}


def archive_of(tmp_path: Path, *options: str) -> Path:
    """Store the contents, and archive them."""
    source, archive = tmp_path / "source", tmp_path / "archive.tar"
    with kvring.Connector(source, "128MiB") as connector:
        Client(connector).store(CONTENTS)
    assert main(["export", str(source), "--output", str(archive), *options]) == 0
    return archive


@pytest.mark.parametrize("layout", ["extents", "files"])
def test_what_is_exported_is_imported_into_any_layout(tmp_path: Path, layout: str) -> None:
    archive, target = archive_of(tmp_path), tmp_path / "target"
    arguments = ["--capacity=128MiB", "--layout", layout, "--input", str(archive)]
    assert main(["import", str(target), *arguments]) == 0
    assert held(target) == CONTENTS
    with kvring.Connector(target, "128MiB", layout=layout) as connector:
        client = Client(connector)
        for key, content in CONTENTS.items():
            assert client.load(key, len(content)) == content


def test_a_store_that_refuses_most_new_keys_takes_all_that_is_imported(tmp_path: Path) -> None:
    archive, target = archive_of(tmp_path), tmp_path / "target"
    content = pattern(256 << 10, 0)
    with kvring.Connector(target, "256MiB", lease_s=0, ttl="off") as connector:
        client = Client(connector)
        used = [make_key(key) for key in range(1000, 1100)]
        others = [make_key(key) for key in range(10_000, 13_200)]
        # Only chunks that were used come back after they were evicted.
        client.store(dict.fromkeys(used, content))
        connector.touch(used)
        for first in range(0, len(others), 400):
            client.store(dict.fromkeys(others[first : first + 400], content))
        client.store(dict.fromkeys(used, content))
        assert connector.stats()["admitted_share"] < 0.1
        # Enough space for all of the archive, and yet over nine tenths are taken.
        stored = client.exists(others)
        held_others = [key for key, is_held in zip(others, stored, strict=True) if is_held]
        client.delete(held_others[:50])
    arguments = ["--capacity=256MiB", "--yes", "--input", str(archive)]
    assert main(["import", str(target), *arguments]) == 0
    assert held(target).items() >= CONTENTS.items()


def test_through_a_pipe_into_a_device(tmp_path: Path) -> None:
    archive_of(tmp_path)
    with bare_loop_device(tmp_path, 128 * MIB) as device:
        kvring_command = f"{sys.executable} -m kvring"
        pipe = f"{kvring_command} export $0 | {kvring_command} import $1 --capacity=64MiB"
        subprocess.run(
            ["bash", "-ec", f"set -o pipefail; {pipe}", str(tmp_path / "source"), str(device.path)],
            check=True,
            timeout=HANG_DEADLINE_S,
        )
        assert held(device.path) == CONTENTS


def test_what_was_done_is_told_to_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, target = archive_of(tmp_path, "--json"), tmp_path / "target"
    printed = json.loads(capsys.readouterr().err)
    assert (printed["chunks"], printed["left_out"]) == (len(CONTENTS), 0)
    arguments = ["--capacity=64MiB", "--json", "--input", str(archive)]
    assert main(["import", str(target), *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["stored"], printed["refused"], printed["evicted"]) == (len(CONTENTS), 0, 0)
    assert main(["resize", str(target), "--capacity=128MiB", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["keys"], printed["evicted"]) == (len(CONTENTS), 0)


def test_other_programs_read_the_archive(tmp_path: Path) -> None:
    archive = archive_of(tmp_path)
    assert stat.S_ISREG(archive.stat().st_mode)
    done = subprocess.run(
        ["tar", "-xf", str(archive), "-C", str(tmp_path)], check=True, capture_output=True
    )
    assert done.stderr == b""
    extracted = {file.read_bytes() for file in (tmp_path / "chunks").iterdir()}
    assert extracted == set(CONTENTS.values())


def test_a_store_is_exported_while_its_owner_works(
    open_client: Callable[..., Client], tmp_path: Path, store_directory: Path
) -> None:
    client = open_client("32MiB", lease_s=0)
    ends = threading.Event()

    def work() -> None:
        number = 0
        while not ends.is_set():
            client.store({make_key(number): pattern(500_000, number)})
            number += 1
            # Not so fast that all of it is gone before it is read.
            time.sleep(0.02)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        client.wait_until(lambda: client.stat("evicted") > 20)
        for number in range(5):
            archive = tmp_path / f"{number}.tar"
            assert main(["export", str(store_directory), "--output", str(archive)]) == 0
            target = tmp_path / f"target-{number}"
            assert main(["import", str(target), "--capacity=64MiB", "--input", str(archive)]) == 0
            found = held(target)
            assert found
            for key, content in found.items():
                assert content == pattern(500_000, int(key.rpartition("@")[2], 16))
    finally:
        ends.set()
        worker.join()


def test_what_is_broken_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_of(tmp_path)
    key = make_key(3)
    damage(tmp_path / "source", key)
    archive, target = tmp_path / "second.tar", tmp_path / "target"
    assert main(["export", str(tmp_path / "source"), "--output", str(archive)]) == 4
    assert f"'{key}' is damaged" in capsys.readouterr().err
    assert main(["import", str(target), "--capacity=64MiB", "--input", str(archive)]) == 0
    assert held(target) == {name: one for name, one in CONTENTS.items() if name != key}


def test_an_archive_that_was_cut_short_or_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = archive_of(tmp_path).read_bytes()
    changed, target = tmp_path / "changed.tar", tmp_path / "target"

    def imported(content: bytes) -> tuple[int, str]:
        changed.write_bytes(content)
        capsys.readouterr()
        status = main(["import", str(target), "--capacity=64MiB", "--input", str(changed)])
        for key, stored in (held(target) if target.exists() else {}).items():
            assert stored == CONTENTS[key]
        return status, capsys.readouterr().err

    assert imported(b"")[0] == 1
    assert imported(b"no archive at all" * 1000)[0] == 1
    for length in (100, 511, 512, 1536, 300_000, len(whole) // 2, len(whole) - 10_240 * 2):
        status, error = imported(whole[:length])
        # What is whole before the cut is stored.
        expected = 1 if length <= 100_000 else 4
        assert (status, "kvring import: " in error) == (expected, True), length
        assert "Traceback" not in error
    # Somewhere in the bytes of a chunk, and everywhere in the headers of the first.
    position = whole.index(CONTENTS[make_key(5)]) + 50_000
    status, error = imported(_flipped(whole, position))
    assert (status, f"{make_key(5)!r} is damaged" in error) == (4, True)
    for position in range(0, 4096, 61):
        status, error = imported(_flipped(whole, position))
        assert "Traceback" not in error
    foreign = io.BytesIO()
    with tarfile.open(fileobj=foreign, mode="w") as tar:
        tar.add(__file__, "chunks/0")
    status, error = imported(foreign.getvalue())
    assert (status, "is no chunk" in error) == (1, True)


def _flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def test_a_full_disk_below_the_archive_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_of(tmp_path)
    capsys.readouterr()
    assert main(["export", str(tmp_path / "source"), "--output", "/dev/full"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_store_in_use_or_too_small_is_refused_and_stays(
    open_client: Callable[..., Client],
    tmp_path: Path,
    store_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = archive_of(tmp_path)
    client = open_client("64MiB")
    client.store({make_key(number): pattern(MIB, number) for number in range(30)})
    arguments = ["import", str(store_directory), "--input", str(archive)]
    assert main([*arguments, "--capacity=64MiB"]) == 1
    assert f"is open in process {os.getpid()}" in capsys.readouterr().err
    client.connector.close()
    before = held(store_directory)
    assert main([*arguments, "--capacity=16MiB"]) == 1
    assert "30 of 30 chunks" in capsys.readouterr().err
    assert held(store_directory) == before
    assert main([*arguments, "--capacity=1KiB"]) == 2
    assert main([*arguments, "--capacity=no"]) == 2
    assert main(arguments) == 2
    assert held(store_directory) == before


def member(name: str, content: bytes, **headers: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of an archive that somebody made up."""
    made = tarfile.TarInfo(name)
    made.size = len(content)
    # tarfile writes what it is given.
    made.pax_headers = {key.replace("_", "."): text for key, text in headers.items()}
    return made, content


def chunk(
    key: str, content: bytes, variant: str = "0", **headers: str
) -> tuple[tarfile.TarInfo, bytes]:
    """Return a chunk whose digest is right, whatever its key and its variant are."""
    encoded = f"{key}\0{variant}\0".encode(errors="surrogateescape")
    own = {
        "SCHILY_xattr_user_kvring_key": key,
        "SCHILY_xattr_user_kvring_variant": variant,
        "SCHILY_xattr_user_kvring_blake2b": hashlib.blake2b(
            encoded + content, digest_size=32
        ).hexdigest(),
    }
    return member("chunks/0000000001", content, **headers, **own)


def of_type(made: tuple[tarfile.TarInfo, bytes], kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """Return it as a member of another type."""
    made[0].type = kind
    return made


SPARSE = {"GNU_sparse_size": str(2 << 30), "GNU_sparse_map": "0,1", "GNU_sparse_numblocks": "1"}


@pytest.mark.parametrize(
    ("made_up", "message"),
    [
        (chunk("sparse", b"x", **SPARSE), "is no chunk"),
        (chunk("sparse", b"x", **SPARSE | {"GNU_sparse_map": "0,x"}), "or is damaged"),
        (of_type(chunk("old sparse", bytes(512)), tarfile.GNUTYPE_SPARSE), "is no chunk"),
        (of_type(chunk("link", b""), tarfile.SYMTYPE), "is no chunk"),
        (chunk("empty", b""), "is no chunk"),
        (chunk("k" * 4097, b"x"), "is damaged in the archive"),
        (chunk("lone \udcff", b"x"), "is damaged in the archive"),
        (chunk("variant", b"x", "-1"), "is damaged in the archive"),
        (chunk("variant", b"x", str(1 << 32)), "is damaged in the archive"),
        (member("kvring.json", b" " * (2 << 20)), "is no chunk"),
        (member("kvring.json", b'{"chunks": "one", "format": 1}'), "last member is damaged"),
        (member("kvring.json", b'{"chunks": 1, "format": []}'), "last member is damaged"),
        (member("kvring.json", b'{"chunks": 1e999, "format": 1}'), "last member is damaged"),
        (member("kvring.json", b"[" * 100_000), "last member is damaged"),
    ],
)
def test_an_archive_that_somebody_made_up_is_refused_in_words(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    made_up: tuple[tarfile.TarInfo, bytes],
    message: str,
) -> None:
    archive, target = tmp_path / "archive.tar", tmp_path / "target"
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for made, content in (chunk("whole", b"bytes"), made_up):
            tar.addfile(made, io.BytesIO(content))
        if made_up[0].name != "kvring.json":
            end = json.dumps({"chunks": 2, "format": 1}).encode()
            made, _ = member("kvring.json", end)
            tar.addfile(made, io.BytesIO(end))
    assert main(["import", str(target), "--capacity=64MiB", "--input", str(archive)]) == 4
    assert message in capsys.readouterr().err
    # What is whole, before it, is stored.
    assert held(target) == {"whole": b"bytes"}


def test_adopt_looks_at_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "lmcache", tmp_path / "target"
    source.mkdir()
    names = {
        "a-SEP-b@0x01000100@0@00ff.data": "a/b@01000100@0@00ff",
        "a-SEP-b@0x01000100@1f@00ff@tenant 1.data": "a/b@01000100@1f@00ff@tenant 1",
    }
    for name in names:
        (source / name).write_bytes(name.encode() * 1000)
    others = ["a@0x01000100@0@00ff.tmp", "a@01000100@0@00ff.data", "a@0x01000100@0@0f0.data"]
    for name in others:
        (source / name).write_bytes(b"other")
    (source / "d@0x01000100@0@00ff.data").mkdir()
    (source / "l@0x01000100@0@00ff.data").symlink_to("/etc/hostname")
    arguments = ["adopt", str(source), str(target), "--capacity=64MiB"]
    assert main(arguments) == 0
    assert "5 other files" in capsys.readouterr().err
    assert held(target) == {key: name.encode() * 1000 for name, key in names.items()}
    assert main([*arguments, "--move"]) == 0
    assert held(target) == {key: name.encode() * 1000 for name, key in names.items()}
    assert sorted(one.name for one in source.glob("*@0@00ff.tmp")) == others[:1]
    assert not any((source / name).exists() for name in names)
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert "has no chunk of LMCache's fs or fs_native" in told
    # So that whoever names the wrong directory sees what it should hold.
    assert "MODEL@0xRANK@GROUP@HASH[@SALT].data" in told
    assert main(["adopt", "--help"]) == 0
    assert "MODEL@0xRANK@GROUP@HASH[@SALT].data" in capsys.readouterr().out
    assert main(["adopt", str(tmp_path / "none"), str(target), "--capacity=64MiB"]) == 2
