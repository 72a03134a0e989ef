"""Which block devices kvring formats, which it opens, and which it leaves exactly as they are."""

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvring
from kvring.cli import main
from tests.python.conftest import (
    BLOCK_BYTES,
    KIB,
    MIB,
    Client,
    LoopDevice,
    bare_loop_device,
    pattern,
)
from tests.support.block_devices import require

pytestmark = pytest.mark.root

SIZE_BYTES = 64 * MIB
CONTENT = pattern(64 * KIB, 1)
# docs/explanation/format.md: the superblock, its copy, the index, and the zeros at the end.
SUPERBLOCKS = (0, MIB - BLOCK_BYTES)
TAIL_OFFSET = SIZE_BYTES - MIB


@pytest.fixture
def device(tmp_path: Path) -> Iterator[LoopDevice]:
    """Yield a blank device."""
    with bare_loop_device(tmp_path, SIZE_BYTES) as device:
        yield device


def run(*command: str | Path) -> str:
    require(str(command[0]))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read(device: LoopDevice, offset: int, length_bytes: int) -> bytes:
    with device.path.open("rb") as file:
        file.seek(offset)
        return file.read(length_bytes)


def write(device: LoopDevice, offset: int, content: bytes) -> None:
    with device.path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def digest(device: LoopDevice) -> str:
    with device.path.open("rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@contextmanager
def untouched(device: LoopDevice) -> Iterator[None]:
    """Compare the whole device before and after."""
    before = digest(device)
    yield
    assert digest(device) == before


def open_store(device: LoopDevice, **options: object) -> Client:
    return Client(kvring.Connector(device.path, "all", **options))


def make_store(device: LoopDevice) -> None:
    """Make a store with one chunk."""
    client = open_store(device)
    client.store({"key": CONTENT})
    client.connector.close()


def assert_is_there(device: LoopDevice) -> None:
    client = open_store(device)
    try:
        assert client.load("key", len(CONTENT)) == CONTENT
    finally:
        client.connector.close()


def assert_refused(device: LoopDevice, found: str) -> None:
    """It is refused as it is, and holds a store after `kvring format`."""
    with untouched(device), pytest.raises(kvring.NotFormattedError) as refusal:
        open_store(device)
    for part in (f"{device.path} holds", found, f"kvring format {device.path}", "nothing was"):
        assert part in str(refusal.value)
    assert main(["format", "--yes", str(device.path)]) == 0
    make_store(device)
    assert_is_there(device)


def assert_format_refused(
    device: LoopDevice, capsys: pytest.CaptureFixture[str], told: str
) -> None:
    """Not even `kvring format --yes` writes to it."""
    assert main(["format", "--yes", str(device.path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kvring format: ")
    assert told in printed.err


def test_a_blank_device_is_formatted_without_being_asked(device: LoopDevice) -> None:
    make_store(device)
    assert_is_there(device)
    first, second = (read(device, offset, BLOCK_BYTES) for offset in SUPERBLOCKS)
    assert first == second
    assert first.startswith(b"KVRINGDV\1\0\0\0")
    between = SUPERBLOCKS[1] - BLOCK_BYTES
    assert read(device, BLOCK_BYTES, between) == bytes(between)
    assert read(device, TAIL_OFFSET, MIB) == bytes(MIB)


def test_format_does_not_erase_a_store(
    device: LoopDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(device)
    with untouched(device):
        assert_format_refused(device, capsys, "holds a kvring store")
    assert_is_there(device)


def test_format_says_what_it_found_and_asks(
    device: LoopDevice, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(device, TAIL_OFFSET, b"\1" * 512)
    found = f"{device.path} holds data of a kind that blkid does not know\n"
    # Nobody can be asked.
    with untouched(device):
        assert main(["format", str(device.path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == found
    assert "use --yes" in printed.err
    # Somebody can, through a terminal.
    ours, theirs = os.openpty()
    with os.fdopen(theirs, encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        for answer in (b"no\n", b"y\n", b"\n"):
            os.write(ours, answer)
            with untouched(device):
                assert main(["format", str(device.path)]) == 1
            assert "is as it was" in capsys.readouterr().err
        os.write(ours, b"yes\n")
        assert main(["format", str(device.path)]) == 0
    os.close(ours)
    assert capsys.readouterr().out.startswith(found)
    assert read(device, TAIL_OFFSET, MIB) == bytes(MIB)
    make_store(device)
    assert_is_there(device)


@pytest.mark.parametrize("flags", [(), ("--no-discard",)])
def test_format_discards_unless_told_not_to(device: LoopDevice, flags: tuple[str, ...]) -> None:
    write(device, 0, b"\1" * SIZE_BYTES)
    assert main(["format", "--yes", *flags, str(device.path)]) == 0
    between = b"\1" if flags else b"\0"
    assert read(device, MIB, SIZE_BYTES - 2 * MIB) == between * (SIZE_BYTES - 2 * MIB)
    assert read(device, 0, MIB) + read(device, TAIL_OFFSET, MIB) == bytes(2 * MIB)


def test_a_zoned_device_is_refused(
    device: LoopDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A file in the place of what sysfs says: few kernels have such a device.
    zoned, model = Path(f"/sys/block/{device.path.name}/queue/zoned"), tmp_path / "zoned"
    model.write_text("host-managed\n", encoding="ascii")
    run("mount", "--bind", model, zoned)
    try:
        with untouched(device), pytest.raises(kvring.ConfigError, match="host-managed zoned"):
            open_store(device)
        assert_format_refused(device, capsys, "host-managed zoned device")
    finally:
        run("umount", zoned)


@pytest.mark.parametrize(
    ("found", "command"),
    [("ext4 'mine'", ("mkfs.ext4", "-q", "-F", "-L", "mine")), ("swap", ("mkswap",))],
)
def test_what_others_have_made_is_refused(
    device: LoopDevice, found: str, command: tuple[str, ...]
) -> None:
    run(*command, device.path)
    assert_refused(device, found)


def test_a_partition_table_is_refused(device: LoopDevice) -> None:
    # One partition of Linux, from sector 2048 on.
    entry = bytes(4) + b"\x83" + bytes(3) + struct.pack("<II", 2048, 2048)
    write(device, 446, entry + bytes(48) + b"\x55\xaa")
    assert_refused(device, "a partition table (dos)")


@pytest.mark.parametrize("offset", [0, 5000, 600 * KIB, TAIL_OFFSET, SIZE_BYTES - 512])
def test_bytes_of_unknown_kind_are_refused(device: LoopDevice, offset: int) -> None:
    write(device, offset, b"\1" + bytes(511))
    assert_refused(device, "data of a kind that blkid does not know")


def assert_store_is_empty(device: LoopDevice) -> None:
    client = open_store(device)
    assert (client.stat("keys"), client.connector.recovery["reset"]) == (0, None)
    client.connector.close()


def test_a_store_that_something_else_was_written_over_is_refused(device: LoopDevice) -> None:
    make_store(device)
    # As RAID does, which leaves the first block alone.
    write(device, 4096, b"\xfc\x4e\x2b\xa9")
    assert_refused(device, "holds")


def test_a_mounted_device_is_refused_whatever_is_asked_for(
    device: LoopDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("mkfs.ext4", "-q", "-F", device.path)
    mount_point = tmp_path / "mounted"
    mount_point.mkdir()
    run("mount", "-o", "ro,noload", device.path, mount_point)
    try:
        with untouched(device), pytest.raises(kvring.InUseError) as refusal:
            open_store(device)
        assert f"a file system mounted at {mount_point}" in str(refusal.value)
        with untouched(device):
            assert_format_refused(device, capsys, f"a file system mounted at {mount_point}")
    finally:
        run("umount", mount_point)
    assert_refused(device, "ext4")


def test_an_open_store_cannot_be_mounted_or_opened_again(
    device: LoopDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    client = open_store(device)
    try:
        with pytest.raises(kvring.InUseError, match=f"process {os.getpid()} on host"):
            open_store(device)
        assert_format_refused(device, capsys, f"process {os.getpid()} on host")
        with pytest.raises(OSError, match="busy"):
            os.close(os.open(device.path, os.O_RDWR | os.O_EXCL))
    finally:
        client.connector.close()
    # As soon as the kernel has let go of the ring that was closed just now.
    assert_store_is_empty(device)


def test_a_read_only_device_is_refused(
    device: LoopDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    run("blockdev", "--setro", device.path)
    try:
        with untouched(device), pytest.raises(kvring.ConfigError, match="it is read-only"):
            open_store(device)
        assert_format_refused(device, capsys, "it is read-only")
    finally:
        run("blockdev", "--setrw", device.path)


def test_a_device_that_is_too_small_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bare_loop_device(tmp_path, 32 * MIB - 4096) as device, untouched(device):
        with pytest.raises(kvring.ConfigError) as refusal:
            open_store(device)
        assert str(32 * MIB - 4096) in str(refusal.value)
        assert str(32 * MIB) in str(refusal.value)
        assert_format_refused(device, capsys, f"at least {32 * MIB} are needed")


# --- damage of the superblock ---


# --- sectors that cannot be read: a loop device answers EIO behind the end of its file ---


def cut(device: LoopDevice, size_bytes: int) -> None:
    with device.image.open("r+b") as file:
        file.truncate(size_bytes)


def drop_caches(device: LoopDevice) -> None:
    run("blockdev", "--flushbufs", device.path)


def test_a_head_that_cannot_be_read_is_refused(
    device: LoopDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(device)
    drop_caches(device)
    cut(device, 0)
    # It may be readable at another moment.
    with pytest.raises(OSError, match="cannot read both ends of"):
        open_store(device)
    assert_format_refused(device, capsys, "cannot read both ends of")
    assert device.image.stat().st_size == 0, "nothing is written"
    cut(device, SIZE_BYTES)
