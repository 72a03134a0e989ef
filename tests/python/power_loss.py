"""What a store may hold after a power loss: a child that works on it, and what that says."""

import json
import random
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kvring
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, make_key, pattern
from tests.support.acknowledged import (
    Line,
    answered_batches,
    durable_at_once,
    possible_versions,
)
from tests.support.block_devices import DeviceError, patiently, run

CAPACITY_BYTES = 64 * MIB
KEYS = 48
MOST_UNDER_WAY = 4
AS_AFTER_A_REBOOT = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"',
)
OTHER_BOOT_ID = "00000000-0000-4000-8000-000000000000\n"


def length_bytes(number: int) -> int:
    """Return the length of every version of a key."""
    return 13 + number * number * 41


def content_of(number: int, version: int) -> bytes:
    """Return bytes that tell their version, and are of no other."""
    length = length_bytes(number)
    return (version.to_bytes(8, "little") + pattern(length, version * KEYS + number))[:length]


def work(path: str, layout: str, durability: str, seed: int, log: str | None = None) -> None:
    """Store and delete, several batches at a time, and tell of each before and after.

    Each line ends with the length of the log of writes at that moment, where there is one.
    """

    def tell(verb: str, version: int, numbers: list[int]) -> None:
        log_bytes = Path(log).stat().st_size if log else 0
        print(json.dumps([verb, version, numbers, log_bytes]), flush=True)

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
        tell(verb, version, numbers)
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
            tell("done", number, [])


def survey_each(mount_point: str) -> None:
    """Do so on the devices that are named line by line; what was raised is told too.

    A device that is not the store itself is mounted here, as others do not see the boot id.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        device, is_bare, layout, durability = json.loads(line)
        with ExitStack() as stack:
            path = device
            try:
                if not is_bare:
                    run("mount", device, mount_point)
                    stack.callback(patiently, run, "umount", mount_point)
                    path = f"{mount_point}/store"
                told: Any = look_into(path, layout, durability)
            except (kvring.KvRingError, DeviceError, OSError, AssertionError) as error:
                told = [f"{type(error).__name__}: {error}", {}]
        print(json.dumps(told), flush=True)


def look_into(path: str, layout: str, durability: str) -> tuple[str | None, dict[int, Any]]:
    """Open what is there; return why the index was started anew, and the version of each key.

    A chunk that is wrong has no version. What is there must be usable.
    """
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
        return connector.recovery["reset"], found


class Told:
    """What the child says, line by line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        """Begin to listen."""
        self.lines: list[Line] = []
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

    def before(self, log_bytes: int) -> int:
        """Return how many lines were told while the log of writes was no longer than this."""
        return sum(line[3] <= log_bytes for line in self.lines)

    def possible(
        self, lines: int, *, is_persistent: bool, begun: int | None = None
    ) -> list[set[int | None]]:
        """Tell what may be there of each key after so many lines.

        No more is known of the rest than that only the first `begun` lines may have had effects. A
        DELETE is durable with the next SET that was begun after its answer.
        """
        told = self.lines[:begun]
        answered = answered_batches(told[:lines])
        is_durable = durable_at_once(told, answered) if is_persistent else lambda _: False
        return possible_versions(told, KEYS, answered, is_durable)
