"""Writes tests/fixtures/old_stores.*: stores as the kvring at hand leaves them.

Run as root, once for each change of the format that has to be read for ever:
`python -m tests.python.make_old_stores`. tests/python/test_old_stores.py opens what it wrote.
"""

import hashlib
import json
import os
import shutil
import signal
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path

import kvring
from tests.python.conftest import MIB, REPOSITORY, Client, make_key, pattern
from tests.support.block_devices import attach_loop, run

FIXTURES = REPOSITORY / "tests" / "fixtures"
CAPACITY_BYTES = 32 * MIB

# Both sides of a block boundary, and lengths that are no multiple of anything.
LENGTHS_BYTES = (1, 2, 511, 4095, 4096, 4097, 8192, 12_345, 16_384, 20_001)
SALT = "tenant"
LONG_KEY = make_key(90) + "@" + "x" * 1500


def write_store(path: Path, layout: str, closes: bool) -> None:
    """Fill the store at `path` in a process of its own, which closes it or is killed."""
    child = os.fork()
    if child != 0:
        _, status = os.waitpid(child, 0)
        wanted = 0 if closes else signal.SIGKILL
        assert status == wanted, f"the process that fills {path} ended with {status}"
        return
    try:
        fill(path, layout, closes)
    finally:
        # Not back into the caller, which is the parent's: also with an error.
        traceback.print_exc()
        os._exit(1)


def fill(path: Path, layout: str, closes: bool) -> None:
    options = {} if path.is_block_device() else {"layout": layout}
    connector = kvring.Connector(path, CAPACITY_BYTES, **options)
    client = Client(connector)
    for chunks in batches():
        client.store(chunks)
    deleted = [make_key(70), make_key(71, SALT)]
    assert client.delete(deleted) == [True, True]
    client.assert_sound()
    if closes:
        connector.close()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def batches() -> list[dict[str, bytes]]:
    """Return what is stored, in order: a key of a later batch replaces that of an earlier one."""
    plain = {make_key(number): length for number, length in enumerate(LENGTHS_BYTES)}
    salted = {make_key(number, SALT): length + 1 for number, length in enumerate(LENGTHS_BYTES[:6])}
    lengths = plain | salted | {LONG_KEY: 5001, make_key(70): 3000, make_key(71, SALT): 4096}
    first = {key: pattern(length, seed) for seed, (key, length) in enumerate(lengths.items())}
    second = {make_key(3): pattern(6001, 100), make_key(2, SALT): pattern(511, 101)}
    return [first, second]


def manifest() -> dict[str, object]:
    """Return what a reader of the stores must find."""
    held: dict[str, bytes] = {}
    for chunks in batches():
        held |= chunks
    absent = [make_key(70), make_key(71, SALT), make_key(99)]
    present = {
        key: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, content in held.items()
        if key not in absent
    }
    return {"capacity_bytes": CAPACITY_BYTES, "present": present, "absent": absent}


def main() -> None:
    with ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="kvring-old-stores-"))
        stack.callback(shutil.rmtree, work)
        for ending, closes in (("closed", True), ("killed", False)):
            for layout in ("extents", "files"):
                write_store(work / f"{layout}-{ending}", layout, closes)
            with ExitStack() as device_stack:
                image = work / f"device-{ending}"
                device = attach_loop(device_stack, work / "blank", CAPACITY_BYTES, is_sparse=True)
                write_store(device, "extents", closes)
                # The index went through the page cache of the device.
                run("blockdev", "--flushbufs", str(device))
                run("cp", "--sparse=always", str(work / "blank"), str(image))
        names = sorted(entry.name for entry in work.iterdir())
        archive = work / "archive.tar"
        owner = ("--owner=0", "--group=0", "--numeric-owner", "--mtime=@0")
        run(
            "tar",
            "--create",
            "--sparse",
            "--sort=name",
            *owner,
            f"--file={archive}",
            f"--directory={work}",
            *names,
        )
        run("xz", "-9e", str(archive))
        FIXTURES.mkdir(exist_ok=True)
        shutil.copy(archive.with_suffix(".tar.xz"), FIXTURES / "old_stores.tar.xz")
    text = json.dumps(manifest(), indent=1) + "\n"
    (FIXTURES / "old_stores.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
