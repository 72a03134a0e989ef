"""A block device whose transfers fail when a test says so: a loop device over qemu's blkdebug."""

import errno
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.python.conftest import HANG_DEADLINE_S
from tests.support.block_devices import (
    DeviceError,
    attach_loop_over,
    require,
    run,
    temporary_directory,
)

DAEMON = "qemu-storage-daemon"
SECTOR_BYTES = 512
MOST_FAILED_FLUSHES = 200

Kind = Literal["read", "write", "flush"]


class Export(NamedTuple):
    """A file that is a block device's content, and the daemon behind it."""

    path: Path
    daemon: "subprocess.Popen[str]"


class FaultyDevice:
    """A blank block device that fails where and when it is told to."""

    def __init__(self, stack: ExitStack, parent: Path, size_bytes: int) -> None:
        """Start the daemon and put a loop device over what it exports, until the stack ends."""
        work = temporary_directory(stack, parent)
        image, socket_path = work / "image", work / "qmp"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        self._rules = 0
        block = {"driver": "file", "node-name": "image", "filename": str(image), "discard": "unmap"}
        nodes = [block, self._faults([]), self._top()]
        monitor = f"socket,id=qmp,path={socket_path},server=on,wait=off"
        more = ("--chardev", monitor, "--monitor", "chardev=qmp")
        exported, self._daemon = export_over_fuse(stack, work, size_bytes, nodes, *more)
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(HANG_DEADLINE_S)
        connection.connect(str(socket_path))
        self._monitor = stack.enter_context(connection.makefile("rw", encoding="utf-8"))
        self._monitor.readline()
        self._command("qmp_capabilities")
        self.path = attach_loop_over(stack, exported)

    def fail(self, kind: Kind, *offsets_bytes: int, error: int = errno.EIO) -> None:
        """Answer `error` to what touches the sectors at these offsets; without any, to everything.

        It takes the place of what was said before.
        """
        rule: dict[str, Any] = {"event": "none", "iotype": kind, "errno": error}
        rules = [rule | {"sector": offset // SECTOR_BYTES} for offset in offsets_bytes] or [rule]
        # The daemon flushes by itself before it changes anything: that must work again some time.
        self._apply([rule | {"once": True}] * MOST_FAILED_FLUSHES if kind == "flush" else rules)

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """Answer nothing for a while: who asks waits, and no signal ends that."""
        self._daemon.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemon.send_signal(signal.SIGCONT)

    def mend(self) -> None:
        """Let everything work again."""
        self._apply([])

    def _faults(self, rules: list[dict[str, Any]]) -> dict[str, Any]:
        node = {"driver": "blkdebug", "node-name": f"faults{self._rules}", "image": "image"}
        # It takes no empty list.
        return node | ({"inject-error": rules} if rules else {})

    def _top(self) -> dict[str, Any]:
        return {"driver": "raw", "node-name": "top", "file": f"faults{self._rules}"}

    def _apply(self, rules: list[dict[str, Any]]) -> None:
        # Rules of a node are as they were made: another one takes its place.
        old = f"faults{self._rules}"
        self._rules += 1
        self._command("blockdev-add", **self._faults(rules))
        for _ in range(MOST_FAILED_FLUSHES):
            if self._attempt("blockdev-reopen", options=[self._top()]) is None:
                break
        else:
            self._command("blockdev-reopen", options=[self._top()])
        self._command("blockdev-del", **{"node-name": old})

    def _command(self, name: str, **arguments: Any) -> None:
        error = self._attempt(name, **arguments)
        assert error is None, error

    def _attempt(self, name: str, **arguments: Any) -> dict[str, str] | None:
        self._monitor.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        self._monitor.flush()
        while "event" in (answer := json.loads(self._monitor.readline())):
            pass
        return answer.get("error")  # type: ignore[no-any-return]


def export_over_fuse(
    stack: ExitStack, work: Path, size_bytes: int, nodes: list[dict[str, Any]], *more: str
) -> Export:
    """Have a daemon export the node `top`, until the stack ends."""
    require("losetup", DAEMON)
    exported = work / "exported"
    exported.touch()
    blocks = [argument for node in nodes for argument in ("--blockdev", json.dumps(node))]
    export = {
        "type": "fuse",
        "id": "export",
        "node-name": "top",
        "mountpoint": str(exported),
        "writable": True,
    }
    daemon = subprocess.Popen(
        [DAEMON, *blocks, "--export", json.dumps(export), *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.callback(_end, daemon)
    # It has a length only once it is exported.
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while exported.stat().st_size != size_bytes:
        if daemon.poll() is not None:
            assert daemon.stderr is not None
            raise DeviceError(f"{DAEMON} can't export it: {daemon.stderr.read().strip()}")
        assert time.monotonic() < deadline_s, f"{DAEMON} hangs"
        time.sleep(0.01)
    _write_one_at_a_time(exported, work)
    return Export(exported, daemon)


def _write_one_at_a_time(exported: Path, work: Path) -> None:
    """Have the kernel send one write at a time: qemu 10.0 mixes up the bytes of several."""
    connections = work / "connections"
    connections.mkdir()
    run("mount", "-t", "fusectl", "fusectl", str(connections))
    try:
        limit = connections / str(os.minor(exported.stat().st_dev)) / "max_background"
        limit.write_text("1", encoding="ascii")
    finally:
        run("umount", str(connections))


def _end(daemon: subprocess.Popen[str]) -> None:
    daemon.terminate()
    daemon.communicate(timeout=HANG_DEADLINE_S)


@contextmanager
def faulty_device(parent: Path, size_bytes: int) -> Iterator[FaultyDevice]:
    """Make one; skip the test where that cannot be."""
    with ExitStack() as stack:
        device = FaultyDevice(stack, parent, size_bytes)
        yield device
