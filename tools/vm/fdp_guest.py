"""In a machine with an FDP drive: which reclaim unit handle each class of chunks arrives at."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kvring

CHUNK_BYTES = 256 << 10
# One drive has four handles, the other one no FDP.
SERIALS = {"fdp": "fdp", "plain": "plain"}


def device(serial: str) -> Path:
    """Return the drive with this serial number."""
    for drive in Path("/sys/block").glob("nvme[0-9]n1"):
        if (drive / "device" / "serial").read_text().strip() == serial:
            return Path("/dev") / drive.name
    raise SystemExit(f"there is no drive {serial}")


def handles(drive: Path) -> dict[int, int]:
    """Return the bytes that are left in the reclaim unit of each placement identifier."""
    done = subprocess.run(
        ["nvme", "fdp", "status", str(drive), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    found = json.loads(done.stdout)["ruhss"]
    return {one["pid"]: one["ruamw"] * 512 for one in found}


def arrived(drive: Path, before: dict[int, int]) -> dict[int, int]:
    """Return the KiB that arrived at each placement identifier since then."""
    after = handles(drive)
    return {pid: (before[pid] - after[pid]) // 1024 for pid in before}


def store(connector: Any, keys: list[str]) -> None:
    """Store chunks, and wait for them."""
    chunk = bytes(range(256)) * (CHUNK_BYTES // 256)
    for key in keys:
        connector.submit_batch_set([key], [memoryview(chunk)])
        while not (done := connector.drain_completions()):
            time.sleep(0.0005)
        if not done[0][1]:
            raise SystemExit(f"{key}: {done}")


def key(number: int, salt: str = "") -> str:
    """Return a key of LMCache's form."""
    return f"model@1@0@{number:016x}" + (f"@{salt}" if salt else "")


def show(title: str, connector: Any, drive: Path, before: dict[int, int]) -> None:
    """Print what kvring says it wrote, and what the drive says."""
    path = connector.stats()["paths"][0]
    kvring_kib = {
        one["stream"]: (one["content"], one["written_bytes"] // 1024)
        for one in path["write_streams"]
    }
    print(f"== {title}", flush=True)
    print(f"kvring, KiB by stream:              {kvring_kib}")
    print(f"drive, KiB by placement identifier: {arrived(drive, before)}", flush=True)


def run(option: str, fill: Any, drive: Path, title: str) -> None:
    """Format the drive, and let `fill` store with the option."""
    subprocess.run(["dd", "if=/dev/zero", f"of={drive}", "bs=1M", "count=1"], check=True)
    subprocess.run(["sync"], check=True)
    connector = kvring.Connector(
        drive, "40MiB", write_streams=option, admit="always", lease_s=0, discard="never"
    )
    before = handles(drive)
    fill(connector)
    show(title, connector, drive, before)
    before = handles(drive)
    connector.close()
    print(f"after close(), the index:           {arrived(drive, before)}", flush=True)


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


def main() -> None:
    """Run all of it."""
    print(f"Linux {Path('/proc/sys/kernel/osrelease').read_text().strip()}")
    drive = device("fdp")
    queue = Path("/sys/block") / drive.name / "queue"
    for name in ("max_write_streams", "write_stream_granularity"):
        print(f"{name}: {(queue / name).read_text().strip()}")
    run("off", cold_and_returned, drive, "write_streams = off")
    run("lifetime", cold_and_returned, drive, "write_streams = lifetime")
    run("namespace", two_salts, drive, "write_streams = namespace")
    plain = device("plain")
    print("== a drive without FDP", flush=True)
    connector = kvring.Connector(plain, "40MiB", write_streams="namespace")
    store(connector, [key(1)])
    print(connector.stats()["paths"][0]["write_streams"])
    connector.close()
    print("== doctor, stats, nvme", flush=True)
    for command in (
        [sys.executable, "-m", "kvring", "doctor", str(drive), "--json"],
        [sys.executable, "-m", "kvring", "doctor", str(plain), "--json"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for one in json.loads(done.stdout or "[]"):
            if re.match("write streams|drive", one["check"]):
                print(f"{one['level']} {one['check']}: {one['what']}", flush=True)
        print(done.stderr)
    subprocess.run(["nvme", "fdp", "status", str(drive)], check=False)
    controller = "/dev/" + re.sub("n1$", "", drive.name)
    subprocess.run(["nvme", "fdp", "stats", controller, "-e", "1"], check=False)


main()
