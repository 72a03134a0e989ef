"""Stores on bare block devices: loop devices; matrix/ has what any store does."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    MIB,
    Client,
    LoopDevice,
    bare_loop_device,
    make_key,
    make_memory,
    pattern,
)

pytestmark = pytest.mark.root

SIZE_BYTES = 128 * MIB
KEYS = [make_key(number) for number in range(200)]
# Odd lengths, and keys of which the records are chains.
CHUNKS = {
    key if number % 8 else key + "x" * 1000: pattern(13 + number * 997, number)
    for number, key in enumerate(KEYS)
}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[LoopDevice]:
    """Yield a blank device."""
    with bare_loop_device(tmp_path, SIZE_BYTES) as device:
        yield device


@pytest.fixture
def open_store(device: LoopDevice) -> Iterator[Callable[..., Client]]:
    """Open the store on the device; it is closed before the device goes."""
    connectors: list[kvring.Connector] = []

    def build(capacity: int | str = "all", **options: Any) -> Client:
        connectors.append(kvring.Connector(device.path, capacity, **options))
        return Client(connectors[-1])

    yield build
    for connector in connectors:
        connector.close()


def test_a_capacity_past_the_device_is_refused(
    device: LoopDevice, open_store: Callable[..., Client]
) -> None:
    with pytest.raises(kvring.ConfigError) as refusal:
        open_store(SIZE_BYTES + 1)
    for part in (str(SIZE_BYTES + 1), str(SIZE_BYTES), str(device.path), "'all'"):
        assert part in str(refusal.value)
    assert device.image.stat().st_blocks == 0, "nothing is written"
    open_store(SIZE_BYTES)


def test_options_that_mean_something_on_devices_only(store_directory: Path) -> None:
    for options in ({"index_path": "/tmp"}, {"discard": "free"}):
        with pytest.raises(kvring.ConfigError, match="is a directory, no block device"):
            kvring.Connector(store_directory, 64 * MIB, **options)
    with pytest.raises(kvring.ConfigError, match="give a size"):
        kvring.Connector(store_directory, "all")
    assert not store_directory.exists()


def test_paths_that_no_store_can_be_on(tmp_path: Path) -> None:
    missing = Path("/dev/kvring-is-not-there")
    link = tmp_path / "link"
    link.symlink_to("/dev")
    for path in (missing, missing / "store", link / missing.name):
        with pytest.raises(kvring.ConfigError, match="there is no such device"):
            kvring.Connector(path, 64 * MIB)
    assert not missing.exists()
    with pytest.raises(kvring.ConfigError, match="character device"):
        kvring.Connector("/dev/null", 64 * MIB)


# --- the index in a directory ---


def index_files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_the_index_in_a_directory(open_store: Callable[..., Client], tmp_path: Path) -> None:
    directory = tmp_path / "made" / "index"
    client = open_store(index_path=directory)
    client.store(CHUNKS)
    (index,) = index_files(directory)
    assert index.name.startswith("index-")
    with pytest.raises(kvring.InUseError, match=f"process {os.getpid()} on host"):
        open_store(index_path=directory)
    client.connector.close()

    client = open_store(index_path=directory)
    assert client.connector.recovery["kept"] == len(CHUNKS)
    for key, content in CHUNKS.items():
        assert client.load(key, len(content)) == content
    client.connector.close()
    with pytest.raises(kvring.ConfigError, match="index_path"):
        open_store()


# --- write streams ---


def test_a_drive_without_write_streams_is_said_once(
    open_store: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    client = open_store(write_streams="namespace")
    client.store(CHUNKS)
    path = client.connector.stats()["paths"][0]
    assert path["write_streams"] == []
    assert path["geometry"]["write_streams"] in (None, 0), "loop devices have none"
    told = [one.message for one in caplog.records if "has no effect" in one.message]
    (line,) = told
    assert line.startswith(path["path"])


# --- discard ---


def test_freed_places_are_discarded_and_the_others_stay(
    device: LoopDevice, open_store: Callable[..., Client]
) -> None:
    client = open_store(discard="free", lease_s=0)
    content = pattern(2 * MIB, 5)

    def chunk(number: int) -> bytes:
        start = number * 4099
        return content[start : start + MIB]

    keys = [make_key(number) for number in range(90)]
    client.store({key: chunk(number) for number, key in enumerate(keys)})
    taken_bytes = device.image.stat().st_blocks * 512
    assert taken_bytes >= 90 * MIB
    # New chunks come to the freed places while these are being discarded, and others are loaded.
    gone, kept = keys[::3], keys[1::3] + keys[2::3]
    memory = make_memory(MIB)
    rounds = 0
    for turn in range(6):
        client.delete(gone)
        new = {make_key(1000 + turn * 10 + number): chunk(number + turn) for number in range(10)}
        client.store(new)
        for key in kept[turn::6]:
            client.get([key], [memory])
            assert memory == chunk(keys.index(key))
            rounds += 1
        for key, expected in new.items():
            assert client.load(key, MIB) == expected
        client.delete(list(new))
        client.store({key: chunk(keys.index(key)) for key in gone})
    assert rounds == len(kept)
    client.delete(gone)
    client.wait_until(lambda: device.image.stat().st_blocks * 512 < (len(kept) + 4) * MIB + MIB)
    for key in kept:
        assert client.load(key, MIB) == chunk(keys.index(key))
    client.assert_sound()
