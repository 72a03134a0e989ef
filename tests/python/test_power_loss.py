"""What is on a disk at one moment, with the page cache lost: the store that is opened there.

A child works on a store on a fresh file system. That is on a loop device with direct I/O, whose
image is on XFS, so that a clone of it is the device at one moment while the child goes on. Each
clone is mounted and opened as by a machine that has gone down: with another boot id.
"""

import fcntl
import json
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvring
from benches.compare.block_devices import (
    DeviceError,
    attach_loop,
    attach_loop_over,
    mount,
    patiently,
    require,
    run,
    temporary_directory,
)
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    REPOSITORY,
    Client,
    child_command,
    make_key,
    pattern,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]

CAPACITY_BYTES = 64 * MIB
IMAGE_SIZE_BYTES = 320 * MIB
KEYS = 48
MOST_UNDER_WAY = 4
SNAPSHOTS = 3
# XFS takes no less for a file that shares blocks with another.
SECTOR_SIZE = ("--sector-size", "4096")
# linux/fs.h: the whole of a file, at one moment.
FICLONE = 0x40049409
MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
# Two of the same file system are mounted at a time.
MOUNT_OPTIONS = {"ext4": (), "xfs": ("-o", "nouuid")}
AS_AFTER_A_REBOOT = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"',
)


def length_bytes(number: int) -> int:
    """Return the length of every version of a key."""
    return 13 + number * number * 41


def content_of(number: int, version: int) -> bytes:
    """Return bytes that tell their version, and are of no other."""
    length = length_bytes(number)
    return (version.to_bytes(8, "little") + pattern(length, version * KEYS + number))[:length]


def work(path: str, layout: str, durability: str, seed: int) -> None:
    """Store and delete, several batches at a time, and tell of each before and after."""
    chance = random.Random(seed)
    options: dict[str, Any] = {"layout": layout, "durability": durability, "min_free": 0}
    connector = kvring.Connector(path, CAPACITY_BYTES, **options)
    client = Client(connector)
    print("ready", flush=True)
    under_way: list[tuple[int, int]] = []
    version = 0
    while True:
        version += 1
        numbers = chance.sample(range(KEYS), chance.randint(1, 5))
        keys = [make_key(number) for number in numbers]
        verb = chance.choice(["set", "set", "set", "delete"])
        print(json.dumps([verb, version, numbers]), flush=True)
        if verb == "set":
            future_id = connector.submit_batch_set(
                keys, [content_of(number, version) for number in numbers]
            )
        else:
            future_id = connector.submit_batch_delete(keys)
        under_way.append((version, future_id))
        if len(under_way) >= MOST_UNDER_WAY:
            number, future_id = under_way.pop(0)
            completion = client.wait(future_id)
            assert completion.ok, completion.error
            print(json.dumps(["done", number, []]), flush=True)


def survey(path: str, layout: str, durability: str) -> None:
    """Open what is there, and tell the version of each key, or what is wrong."""
    options: dict[str, Any] = {"layout": layout, "durability": durability, "min_free": 0}
    found: dict[int, int | str | None] = {}
    with kvring.Connector(path, CAPACITY_BYTES, **options) as connector:
        client = Client(connector)
        for number in range(KEYS):
            content = client.load(make_key(number), length_bytes(number))
            version = int.from_bytes(content[:8], "little") if content else None
            is_right = version is None or content == content_of(number, version)
            found[number] = version if is_right else "wrong bytes"
        client.store({make_key(number): content_of(number, 1) for number in range(KEYS)})
        for number in range(KEYS):
            assert client.load(make_key(number), length_bytes(number)) == content_of(number, 1)
        client.assert_sound()
        print(json.dumps([connector.recovery["reset"], found]), flush=True)


class Step(NamedTuple):
    """A batch as one of its keys sees it; lines are counted from the start of the child."""

    result: int | None
    begun: int
    done: int | None


class Told:
    """What the child says, line by line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        """Begin to listen."""
        self.lines: list[tuple[str, int, list[int]]] = []
        self._child = child
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with self._more:
                self.lines.append(json.loads(line))
                self._more.notify_all()

    def wait_for_more(self, count: int) -> int:
        """Wait until so many lines more have come; return how many there are."""
        with self._more:
            wanted = len(self.lines) + count
            came = self._more.wait_for(lambda: len(self.lines) >= wanted, HANG_DEADLINE_S)
            assert came, "the child hangs"
            return len(self.lines)

    def end(self) -> None:
        """Kill the child, and hear what it had said."""
        self._child.kill()
        self._thread.join()

    def possible(self, lines: int, *, is_persistent: bool) -> list[set[int | None]]:
        """Tell what may be there of each key after so many lines, of which the rest is not known.

        A DELETE is durable with the next SET that was begun after its answer.
        """
        done = {line[1]: at for at, line in enumerate(self.lines[:lines]) if line[0] == "done"}
        last_set = max(
            (at for at, line in enumerate(self.lines) if line[0] == "set" and line[1] in done),
            default=-1,
        )
        steps: list[list[Step]] = [[] for _ in range(KEYS)]
        for at, (verb, version, numbers) in enumerate(self.lines):
            result = version if verb == "set" else None
            for number in numbers:
                steps[number].append(Step(result, at, done.get(version)))

        def is_durable(step: Step) -> bool:
            if not is_persistent or step.done is None:
                return False
            return step.result is not None or step.done < last_set

        possible: list[set[int | None]] = []
        for own in steps:
            durable = [at for at, step in enumerate(own) if is_durable(step)]
            before: set[int | None] = set() if durable else {None}
            begin = durable[-1] if durable else 0
            possible.append(before | {step.result for step in own[begin:]})
            if not is_persistent:
                possible[-1].add(None)
        return possible


class Disk:
    """A file system that can be looked at as it is on the disk now."""

    def __init__(self, stack: ExitStack, parent: Path, file_system: str) -> None:
        """Make it, until the stack ends."""
        require("losetup", "mkfs.xfs", MAKE[file_system][0], "mount", "unshare")
        self._stack = stack
        self._parent = parent
        self._file_system = file_system
        below = attach_loop(stack, parent / "below", 4 * IMAGE_SIZE_BYTES, is_sparse=True)
        self._images = mount(stack, MAKE["xfs"], below, temporary_directory(stack, parent))
        image = self._images / "0"
        device = attach_loop(stack, image, IMAGE_SIZE_BYTES, *SECTOR_SIZE, is_sparse=True)
        mount_point = temporary_directory(stack, parent)
        self.directory = mount(stack, MAKE[file_system], device, mount_point)

    def snapshot(self) -> Path:
        """Keep what it has now."""
        copy = self._images / f"{len(list(self._images.iterdir()))}"
        with (self._images / "0").open("rb") as image, copy.open("wb") as file:
            fcntl.ioctl(file, FICLONE, image.fileno())
        return copy

    @contextmanager
    def mounted(self, snapshot: Path) -> Iterator[Path]:
        """Mount what a snapshot has; yield what `directory` was."""
        with ExitStack() as stack:
            mount_point = temporary_directory(stack, self._parent)
            device = attach_loop_over(stack, snapshot, *SECTOR_SIZE)
            run("mount", *MOUNT_OPTIONS[self._file_system], str(device), str(mount_point))
            stack.callback(patiently, run, "umount", str(mount_point))
            yield mount_point / self.directory.name


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Yield a fresh one."""
    with ExitStack() as stack:
        try:
            disk = Disk(stack, tmp_path, request.param)
        except DeviceError as error:
            pytest.skip(str(error))
        yield disk


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["extents", "files"])
@pytest.mark.parametrize("durability", ["persistent", "best_effort"])
@pytest.mark.parametrize("seed", [1, 2])
def test_power_loss(
    disk: Disk,
    layout: str,
    durability: str,
    seed: int,
    tmp_path: Path,
    start_child: Callable[..., subprocess.Popen[str]],
) -> None:
    chance = random.Random(seed)
    store = str(disk.directory / "store")
    told = Told(start_child(work, store, layout, durability, seed))
    snapshots: list[tuple[int, Path]] = []
    try:
        for _ in range(SNAPSHOTS):
            lines = told.wait_for_more(chance.randint(1, 150))
            snapshots.append((lines, disk.snapshot()))
        told.wait_for_more(2 * MOST_UNDER_WAY)
    finally:
        told.end()
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("00000000-0000-4000-8000-000000000000\n", encoding="ascii")
    held = 0
    for lines, snapshot in snapshots:
        possible = told.possible(lines, is_persistent=durability == "persistent")
        with disk.mounted(snapshot) as directory:
            command = child_command(survey, str(directory / "store"), layout, durability)
            done = subprocess.run(
                [*AS_AFTER_A_REBOOT, str(boot_id), *command],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=HANG_DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        reset, found = json.loads(done.stdout)
        for number in range(KEYS):
            version = found[str(number)]
            assert version in possible[number], (
                f"after {lines} lines key {number} is {version}, possible {possible[number]}"
            )
            held += version is not None
        if durability == "persistent":
            assert reset is None
    if durability == "persistent":
        assert held > 0
