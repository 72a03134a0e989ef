"""In a machine that loses power: a load on a store, or a look at what is left of stores.

A drive with the serial number "load" takes a load, others are looked at. The arguments are the file
system, the layout, the durability, and for a load its seed. Everything is told over the second
serial port, a line at a time; a line has left the machine when `tell` returns.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import kvring

CAPACITY = "48MiB"
# Chunks of these keys stay until they are deleted. Half of the load is on the first few, so that
# most of the others are older than what `best_effort` may lose.
LASTING_KEYS = 160
_HOT_KEYS = 16
# Chunks of the others evict each other.
KEYS = LASTING_KEYS + 90
_QUOTAS = {"evicting": "5MiB"}
# Powers of two, in blocks of 4 KiB: about 100 KiB on average.
_LENGTHS = (0, 2, 1, 4, 0, 3, 2, 5, 1, 0, 4, 2, 6, 1, 3, 8)
_MOST_UNDER_WAY = 4
_MOUNT_POINT = Path("/mnt")
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
_DIFFERENT_BYTES = 3 << 20
_HEADER_BYTES = 16
# System calls that a thread waits in: futex.
_IDLE = "202"
_WATCH = "watch"


class Drive(NamedTuple):
    """A drive, and what it is to hold."""

    path: Path
    serial: str
    file_system: str
    layout: str
    durability: str


def length_bytes(number: int) -> int:
    """Return the length of the chunks of a key: 4 KiB to 1 MiB, some not in whole blocks."""
    whole = 4096 << _LENGTHS[number % len(_LENGTHS)]
    return whole + number * 7 if number % 3 else whole


@functools.cache
def _different_bytes() -> bytes:
    return random.Random(0).randbytes(_DIFFERENT_BYTES + (2 << 20))


def content_of(number: int, version: int) -> bytes:
    """Return bytes that tell key and version, and differ from those of others at every place."""
    begin = (version * KEYS + number) * 509 % _DIFFERENT_BYTES
    header = version.to_bytes(8, "little") + number.to_bytes(8, "little")
    return header + _different_bytes()[begin : begin + length_bytes(number) - _HEADER_BYTES]


def key_of(number: int) -> str:
    """Return a key of LMCache's form."""
    return f"{'lasting' if number < LASTING_KEYS else 'evicting'}@1@0@{number:016x}"


class Port:
    """The second serial port."""

    def __init__(self) -> None:
        self._file = os.open("/dev/ttyS1", os.O_WRONLY | os.O_NOCTTY)
        self._lock = threading.Lock()
        settings = termios.tcgetattr(self._file)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(self._file, termios.TCSANOW, settings)

    def tell(self, *what: Any) -> None:
        """Send a line, and wait until the machine has sent it."""
        with self._lock:
            os.write(self._file, json.dumps(what).encode() + b"\n")
            termios.tcdrain(self._file)


def find_drives(case: list[str]) -> list[Drive]:
    """Return the drives beside that of the root."""
    drives = []
    for block in Path("/sys/block").iterdir():
        if re.fullmatch(r"nvme\d+n1", block.name):
            serial = (block / "device" / "serial").read_text().strip()
            drives.append(Drive(Path("/dev", block.name), serial, *case))
    return [drive for drive in drives if drive.serial != "root"]


def place_of(drive: Drive) -> Path:
    """Mount the drive if it has a file system; return the path for a store."""
    if drive.file_system == "bare":
        return drive.path
    if drive.file_system not in Path("/proc/filesystems").read_text().split():
        _run("modprobe", drive.file_system)
    _run("mount", "-t", drive.file_system, str(drive.path), str(_MOUNT_POINT))
    return _MOUNT_POINT / "store"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def open_store(drive: Drive, path: Path) -> kvring.Connector:
    """Open the store."""
    return kvring.Connector(
        path,
        CAPACITY,
        layout=drive.layout,
        durability=drive.durability,
        min_free=0,
        admit="always",
        lease_s=0,
        ttl="off",
        quotas=_QUOTAS,
    )


class Client:
    """A connector, and the completions that came while others were waited for."""

    def __init__(self, connector: kvring.Connector) -> None:
        self.connector = connector
        self._kept: dict[int, tuple[bool, str, list[bool]]] = {}

    def wait(self, future: int) -> tuple[bool, str, list[bool]]:
        """Wait for one; return whether it succeeded, why not, and the same for each key."""
        while future not in self._kept:
            for number, ok, error, each in self.connector.drain_completions():
                self._kept[number] = ok, error, each
            time.sleep(0.0005)
        return self._kept.pop(future)

    def load(self, number: int) -> bytes | None:
        """Return a chunk, or None."""
        memory = bytearray(length_bytes(number))
        future = self.connector.submit_batch_get([key_of(number)], [memoryview(memory)])
        _, error, each = self.wait(future)
        if error:
            raise OSError(f"GET of {key_of(number)}: {error}")
        return bytes(memory) if each[0] else None


def _tell_time(port: Port, watch: Path | None) -> None:
    """Tell every 100 ms what time it is, and in ms how long a flush took at most up to now."""
    while True:
        longest_ms = int(watch.read_text()) if watch else 0
        port.tell("time", longest_ms, [], round(time.monotonic() * 1000))
        time.sleep(0.1)


def _watch_flushes() -> Path | None:
    """Have a process of its own write into a file how long a flush took at most, in ms.

    In `persistent` there are none. What it cannot tell from a flush counts as one.
    """
    threads = Path("/proc/self/task").iterdir()
    of_flushes = [one for one in threads if (one / "comm").read_text().strip() == "kvring-flush"]
    if not of_flushes:
        return None
    watch = Path("/tmp/flush_ms")
    system_call = Path("/proc", str(os.getpid()), "task", of_flushes[0].name, "syscall")
    subprocess.Popen([sys.executable, __file__, _WATCH, str(system_call), str(watch)])
    while not watch.exists():
        time.sleep(0.01)
    return watch


def watch_thread(system_call: Path, watch: Path) -> None:
    """Write in ms how long the thread did anything but wait at most."""
    longest_s = -1.0
    idle_since = time.monotonic()
    while True:
        is_idle = system_call.read_text().split()[0] == _IDLE
        now = time.monotonic()
        if now - idle_since > longest_s:
            longest_s = now - idle_since
            part = watch.with_suffix(".part")
            part.write_text(str(round(longest_s * 1000)))
            part.rename(watch)
        if is_idle:
            idle_since = now
        time.sleep(0.005)


def work(drive: Drive, seed: str, port: Port) -> None:
    """Store and delete, several batches at a time, and tell of each before and after."""
    if drive.file_system != "bare":
        _run(*_MAKE[drive.file_system], str(drive.path))
    path = place_of(drive)
    _run("sync")
    connector = open_store(drive, path)
    client = Client(connector)
    chance = random.Random(seed)

    def tell(verb: str, version: int, numbers: list[int]) -> None:
        port.tell(verb, version, numbers, round(time.monotonic() * 1000))

    watch = _watch_flushes()
    tell("ready", 0, [])
    threading.Thread(target=_tell_time, args=(port, watch), daemon=True).start()
    under_way: list[tuple[int, int]] = []
    version = 0
    while True:
        version += 1
        is_hot = chance.random() < 0.5
        lasting = range(_HOT_KEYS) if is_hot else range(_HOT_KEYS, LASTING_KEYS)
        numbers = chance.sample(lasting, chance.randint(1, 2))
        verb = "delete" if chance.random() < 0.15 else "set"
        if verb == "set":
            numbers += chance.sample(range(LASTING_KEYS, KEYS), chance.randint(0, 3))
        keys = [key_of(number) for number in numbers]
        tell(verb, version, numbers)
        if verb == "set":
            chunks = [memoryview(content_of(number, version)) for number in numbers]
            future = connector.submit_batch_set(keys, chunks)
        else:
            future = connector.submit_batch_delete(keys)
        under_way.append((version, future))
        if len(under_way) >= _MOST_UNDER_WAY:
            version_done, future = under_way.pop(0)
            ok, error, _ = client.wait(future)
            if not ok:
                raise SystemExit(f"batch {version_done}: {error}")
            evicted = connector.counters()["storage"]["ssd_evicted"]
            tell("done", version_done, [evicted])


def look_into(drive: Drive) -> tuple[str | None, list[int | str | None]]:
    """Open what is left; return why the index was made anew, and each key's version.

    A chunk that is of no version is told as text. The store must be usable.
    """
    found: list[int | str | None] = []
    with open_store(drive, place_of(drive)) as connector:
        client = Client(connector)
        for number in range(KEYS):
            content = client.load(number)
            version = int.from_bytes(content[:8], "little") if content else None
            is_right = version is None or content == content_of(number, version)
            found.append(version if is_right else "wrong bytes")
        numbers = range(0, LASTING_KEYS, 3)
        future = connector.submit_batch_set(
            [key_of(number) for number in numbers],
            [memoryview(content_of(number, 1)) for number in numbers],
        )
        ok, error, _ = client.wait(future)
        if not ok:
            raise OSError(f"SET after the open: {error}")
        for number in numbers:
            if client.load(number) != content_of(number, 1):
                raise OSError(f"{key_of(number)} is not what was stored after the open")
        if problems := connector.check()["problems"]:
            raise OSError(f"check: {problems}")
        return connector.recovery["reset"], found


def survey(drive: Drive, port: Port) -> None:
    """Tell what is left of a store."""
    try:
        port.tell(drive.serial, *look_into(drive))
    except (kvring.KvRingError, OSError) as error:
        port.tell(drive.serial, f"{type(error).__name__}: {error}", [])
    if drive.file_system != "bare":
        subprocess.run(["umount", str(_MOUNT_POINT)], check=False)


def main() -> None:
    """Do what the drives are there for."""
    if sys.argv[1] == _WATCH:
        watch_thread(*map(Path, sys.argv[2:]))
    case, seed = sys.argv[1:4], sys.argv[4:]
    port = Port()
    for drive in find_drives(case):
        if drive.serial == "load":
            work(drive, seed[0], port)
        else:
            survey(drive, port)


if __name__ == "__main__":
    main()
