"""In a machine with an FDP drive: which reclaim unit handle each class of chunks arrives at."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvring

CHUNK_BYTES = 256 << 10
Fill = Callable[[Any], None]


def bytes_left(drive: Path) -> dict[int, int]:
    """Return the bytes that are left in the reclaim unit of each placement identifier."""
    command = ["nvme", "fdp", "status", str(drive), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return {one["pid"]: one["ruamw"] * 512 for one in json.loads(done.stdout)["ruhss"]}


def store(connector: Any, keys: list[str]) -> None:
    """Store chunks one by one."""
    chunk = bytes(range(256)) * (CHUNK_BYTES // 256)
    for key in keys:
        connector.submit_batch_set([key], [memoryview(chunk)])
        while not (done := connector.drain_completions()):
            time.sleep(0.0005)
        assert done[0][1], (key, done)


def key(number: int, salt: str = "") -> str:
    """Return a key of LMCache's form."""
    return f"model@1@0@{number:016x}" + (f"@{salt}" if salt else "")


def make_blank(drive: Path) -> None:
    """Erase the first MiB of a drive, so that it has neither store nor file system."""
    with drive.open("r+b") as device:
        device.write(bytes(1 << 20))
        os.fsync(device.fileno())


def arrivals(option: str, fill: Fill, drive: Path) -> dict[str, int]:
    """Store on a blank drive; compare the bytes of each stream with what the drive reports.

    Returns:
        The bytes of each stream with its content.
    """
    make_blank(drive)
    connector = kvring.Connector(
        drive, "40MiB", write_streams=option, admit="always", lease_s=0, discard="never"
    )
    before = bytes_left(drive)
    fill(connector)
    streams = connector.stats()["paths"][0]["write_streams"]
    after = bytes_left(drive)
    connector.close()
    arrived = {pid: before[pid] - after[pid] for pid in before}
    print(f"write_streams = {option}: {streams}, by placement identifier {arrived}", flush=True)
    # Stream n is placement identifier n - 1. Identifier 0 also takes the index.
    sent = {one["stream"] - 1: one["written_bytes"] for one in streams}
    for pid, count in arrived.items():
        if pid > 0 or pid in sent:
            assert count == sent.get(pid, 0), (pid, arrived, sent)
    return {f"{one['stream']} {one['content']}": one["written_bytes"] for one in streams}


def cold_and_returned(connector: Any) -> None:
    """Store more than there is room for, and what was evicted again."""
    store(connector, [key(number) for number in range(200)])
    store(connector, [key(number) for number in range(40)])


def two_salts(connector: Any) -> None:
    """Store chunks of a large namespace, a middle one and two small ones."""
    for number in range(60):
        store(connector, [key(number, "large")])
        if number % 3 == 0:
            store(connector, [key(number, "middle")])
        if number % 15 == 0:
            store(connector, [key(number, "small"), key(number, "tiny")])


def off(drive: Path, _: Path) -> None:
    """Without streams, everything arrives at the first handle."""
    assert arrivals("off", cold_and_returned, drive) == {}


def lifetime(drive: Path, _: Path) -> None:
    """First-time chunks and chunks that came back have a handle each."""
    streams = arrivals("lifetime", cold_and_returned, drive)
    assert {one.split()[1] for one in streams} == {"first_time", "returned"}, streams
    assert all(streams.values()), streams


def namespace(drive: Path, _: Path) -> None:
    """The largest namespaces have a handle each, the others one together."""
    streams = arrivals("namespace", two_salts, drive)
    contents = [one.split()[1] for one in streams]
    assert sorted(contents) == ["one_namespace", "one_namespace", "other_namespaces"], streams
    assert all(streams.values()), streams


def without_fdp(_: Path, plain: Path) -> None:
    """A drive without FDP has no streams, and works."""
    make_blank(plain)
    connector = kvring.Connector(plain, "40MiB", write_streams="namespace")
    store(connector, [key(1)])
    assert connector.stats()["paths"][0]["write_streams"] == []
    connector.close()


def doctor(drive: Path, plain: Path) -> None:
    """`kvring doctor` tells the streams of each drive, and what the FDP drive has written."""
    for one, part in ((drive, "has 4, with reclaim units"), (plain, "has none (NVMe FDP)")):
        command = [sys.executable, "-m", "kvring", "doctor", str(one), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [finding["what"] for finding in json.loads(done.stdout)]
        assert any(part in what for what in found), found
        assert any("write amplification" in what for what in found) == (one == drive), found


CASES = {
    "streams off": off,
    "streams by lifetime": lifetime,
    "streams by namespace": namespace,
    "drive without FDP": without_fdp,
    "doctor": doctor,
}
