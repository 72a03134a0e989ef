"""Stores on bare block devices: loop devices with logical blocks of 512 and of 4096 bytes."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    BLOCK_BYTES,
    KIB,
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


@pytest.fixture(params=[512, 4096])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDevice]:
    """Yield a blank device."""
    with bare_loop_device(tmp_path, SIZE_BYTES, request.param) as device:
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


def hold_store(path: str, count: int) -> None:
    """Store chunks, say so, and wait to be killed."""
    client = Client(kvring.Connector(path, "all"))
    client.store(dict(list(CHUNKS.items())[:count]))
    print("ready", flush=True)
    signal.pause()


def test_everything_works_and_is_there_after_a_restart(open_store: Callable[..., Client]) -> None:
    client = open_store()
    assert client.connector.recovery["reset"] is None
    client.store(CHUNKS)
    gone = KEYS[1:50:8]
    assert client.delete(gone) == [True] * len(gone)
    replaced = pattern(70_001, 77)
    client.store({KEYS[2]: replaced})
    expected = {key: CHUNKS[key] for key in CHUNKS if key not in gone} | {KEYS[2]: replaced}
    for _ in range(2):
        assert client.exists(gone) == [False] * len(gone)
        for key, content in expected.items():
            assert client.load(key, len(content)) == content
        stats = client.connector.stats()
        assert (stats["direct_io"], stats["data_files"]) == (True, 1)
        assert stats["capacity_bytes"] == SIZE_BYTES
        assert SIZE_BYTES * 3 // 4 < stats["used_bytes"] <= SIZE_BYTES
        client.assert_sound()
        client.connector.close()
        client = open_store()
        recovery = client.connector.recovery
        assert (recovery["clean_shutdown"], recovery["reset"]) == (True, None)
        assert recovery["kept"] == len(expected)


def test_a_killed_owner_loses_nothing_that_was_answered(
    device: LoopDevice,
    open_store: Callable[..., Client],
    start_child: Callable[..., subprocess.Popen[str]],
) -> None:
    child = start_child(hold_store, str(device.path), 100)
    with pytest.raises(kvring.InUseError, match=f"process {child.pid} on host"):
        open_store()
    child.kill()
    child.wait()
    client = open_store()
    assert (client.connector.recovery["kept"], client.connector.recovery["torn"]) == (100, 0)
    for key, content in list(CHUNKS.items())[:100]:
        assert client.load(key, len(content)) == content


def test_the_index_grows_and_what_it_holds_is_there_after_a_restart(
    open_store: Callable[..., Client],
) -> None:
    # Two records for each key: 10,000 records take more than two of the steps by which it grows.
    chunks = {f"{number:0300}": pattern(100, number) for number in range(5000)}
    client = open_store(durability="persistent")
    before = client.stat("used_bytes")
    for first in range(0, 5000, 500):
        client.store(dict(list(chunks.items())[first : first + 500]))
    assert client.stat("used_bytes") >= before + 2 * MIB
    client.connector.close()
    client = open_store()
    assert client.connector.recovery["kept"] == 5000
    assert client.exists(list(chunks)) == [True] * 5000
    assert client.load(f"{4321:0300}", 100) == chunks[f"{4321:0300}"]


def test_a_full_device_evicts(open_store: Callable[..., Client]) -> None:
    client = open_store(lease_s=0)
    content = pattern(MIB, 5)
    for number in range(200):
        client.store({make_key(number): content[number:] + content[:number]})
    assert client.stat("evicted") > 70
    assert client.stat("used_bytes") <= SIZE_BYTES
    assert client.load(make_key(199), MIB) == content[199:] + content[:199]
    client.assert_sound()


def test_a_capacity_past_the_device_is_refused(
    device: LoopDevice, open_store: Callable[..., Client]
) -> None:
    with pytest.raises(kvring.ConfigError) as refusal:
        open_store(SIZE_BYTES + 1)
    for part in (str(SIZE_BYTES + 1), str(SIZE_BYTES), str(device.path), "'all'"):
        assert part in str(refusal.value)
    assert device.image.stat().st_blocks == 0, "nothing is written"
    open_store(SIZE_BYTES)


def test_a_smaller_capacity_evicts_and_a_larger_one_is_used(
    open_store: Callable[..., Client],
) -> None:
    content = pattern(MIB, 5)
    chunks = {make_key(number): content[number:] + content[:number] for number in range(80)}
    client = open_store()
    client.store(chunks)
    client.connector.close()

    client = open_store(48 * MIB)
    recovery = client.connector.recovery
    assert recovery["kept"] + recovery["out_of_range"] == 80
    assert 40 <= recovery["kept"] <= 48
    assert client.stat("used_bytes") <= client.stat("capacity_bytes") == 48 * MIB
    held = [
        key for key, is_held in zip(chunks, client.exists(list(chunks)), strict=True) if is_held
    ]
    assert len(held) == recovery["kept"]
    for key in held:
        assert client.load(key, MIB) == chunks[key]
    client.assert_sound()
    client.connector.close()

    client = open_store("all")
    assert client.connector.recovery["kept"] == len(held)
    client.store({f"again {number}": content for number in range(30)})
    assert client.exists(held) == [True] * len(held)


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


def test_a_symlink_leads_to_the_device(
    device: LoopDevice, open_store: Callable[..., Client], tmp_path: Path
) -> None:
    open_store().store({"key": b"value"})
    link = tmp_path / "by-id"
    link.symlink_to(device.path)
    with pytest.raises(kvring.InUseError, match=f"{link} is in use by process {os.getpid()}"):
        kvring.Connector(link, "all")


def test_geometry(open_store: Callable[..., Client], request: pytest.FixtureRequest) -> None:
    geometry = open_store().connector.stats()["paths"][0]["geometry"]
    block_bytes = request.node.callspec.params["device"]
    assert geometry["logical_block_bytes"] == block_bytes
    assert geometry["physical_block_bytes"] >= block_bytes
    assert geometry["offset_alignment_bytes"] == block_bytes
    assert geometry["memory_alignment_bytes"] <= BLOCK_BYTES
    assert geometry["direct_io"] is True
    assert geometry["discard_granularity_bytes"] >= block_bytes


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


def test_a_missing_index_costs_the_hits_and_does_not_come_back(
    open_store: Callable[..., Client], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    client = open_store(index_path=first)
    client.store({"key": pattern(64 * KIB, 1), "other": pattern(64 * KIB, 2)})
    client.connector.close()

    client = open_store(index_path=second)
    assert "was missing" in client.connector.recovery["reset"]
    assert client.exists(["key", "other"]) == [False, False]
    client.connector.close()
    # What the first index says is true no longer, whether it looks so or not.
    client = open_store(index_path=first)
    assert "was missing" in client.connector.recovery["reset"]
    assert client.exists(["key", "other"]) == [False, False]


def test_an_index_of_another_store_is_not_used(
    open_store: Callable[..., Client], tmp_path: Path
) -> None:
    directory = tmp_path / "index"
    client = open_store(index_path=directory)
    client.store({"key": pattern(64 * KIB, 1)})
    client.connector.close()
    (index,) = index_files(directory)
    with kvring.Connector(tmp_path / "elsewhere", 64 * MIB) as connector:
        Client(connector).store({"foreign": pattern(64 * KIB, 1)})
    index.write_bytes((tmp_path / "elsewhere" / "index.kvring").read_bytes())

    client = open_store(index_path=directory)
    assert client.connector.recovery["reset"] == "it belongs to another store"
    assert client.exists(["key", "foreign"]) == [False, False]
    assert client.load("foreign", 64 * KIB) is None
    client.store({"key": pattern(64 * KIB, 3)})
    client.connector.close()
    client = open_store(index_path=directory)
    assert client.load("key", 64 * KIB) == pattern(64 * KIB, 3)


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


def test_formatting_discards_unless_told_not_to(device: LoopDevice) -> None:
    def fill() -> None:
        with device.path.open("wb") as file:
            # Its ends are blank.
            file.write(bytes(MIB) + b"\1" * (62 * MIB) + bytes(MIB))
            # Closing it writes nothing while somebody else has it open, as udev may.
            file.flush()
            os.fsync(file)

    for discard, is_empty in (("never", False), ("format", True), ("free", True)):
        fill()
        assert device.image.stat().st_blocks * 512 >= 64 * MIB
        kvring.Connector(device.path, "all", discard=discard).close()
        assert (device.image.stat().st_blocks * 512 < 16 * MIB) == is_empty


# --- forks ---


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_device_is_free_although_a_fork_of_its_owner_lives(
    open_store: Callable[..., Client],
) -> None:
    client = open_store()
    client.store({"key": b"value"})
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        # Until the parent is done, or dead.
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        client.connector.close()
        again = open_store()
        assert again.load("key", 5) == b"value"
    finally:
        os.close(writer)
        os.waitpid(child, 0)
