"""Processes that use SGLang or vLLM, several at a time, each a fork of one that has imported it."""

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY, child_command

_IMPORT_DEADLINE_S = 4 * HANG_DEADLINE_S


class Process:
    """A process that calls a function of a worker module, and can be asked and killed."""

    def __init__(self, control: socket.socket, function: str, *arguments: Any) -> None:
        """Fork it."""
        self._channel, theirs = Pipe()
        with theirs:
            request = json.dumps([function, arguments]).encode()
            socket.send_fds(control, [request], [theirs.fileno()])
        # It imports the engine first, where it is the first one.
        self.pid: int = self.hear(_IMPORT_DEADLINE_S)
        self._ended = os.pidfd_open(self.pid)

    def call(self, method: str, *arguments: Any) -> Any:
        """Have it call a method, and return what that has returned."""
        self._channel.send((method, arguments))
        return self.hear()

    def hear(self, deadline_s: float = HANG_DEADLINE_S) -> Any:
        """Return what it tells next."""
        assert self._channel.poll(deadline_s), "the process hangs"
        is_ok, value = self._channel.recv()
        assert is_ok, value
        return value

    def hear_rest(self) -> list[Any]:
        """Return all that it has told before it ended."""
        told = []
        try:
            while True:
                told.append(self.hear())
        except EOFError:
            return told

    def has_told(self, within_s: float) -> bool:
        """Wait until it has told something, or is gone; say whether there is something to hear."""
        return self._channel.poll(within_s)

    def stop(self) -> None:
        """Have it wait where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)
        self._wait()

    def end(self) -> None:
        """Have it end by itself: it is asked nothing any more."""
        self._channel.close()
        self._wait()

    def clean_up(self) -> None:
        """Kill it if it is there."""
        self.kill()
        self._channel.close()
        os.close(self._ended)

    def _wait(self) -> None:
        assert select.select([self._ended], [], [], HANG_DEADLINE_S)[0], "the process does not end"


class Processes:
    """Starts processes."""

    def __init__(self, worker: str) -> None:
        """Start the one that imports a worker module, and the engine with it."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._parent = subprocess.Popen(
                child_command(serve, worker, theirs.fileno()),
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @contextmanager
    def started(self) -> Iterator[Callable[..., Process]]:
        """Call functions of the module in new processes, killed at the end of the block."""
        with ExitStack() as stack:

            def start(function: str, *arguments: Any) -> Process:
                process = Process(self._control, function, *arguments)
                stack.callback(process.clean_up)
                return process

            yield start

    def close(self) -> None:
        """End the one that has imported it."""
        self._control.close()
        self._parent.wait(HANG_DEADLINE_S)


@functools.cache
def processes(worker: str) -> Processes:
    """Return those of this test run, which all modules share: `worker` is in this directory."""
    # By name: to import it takes ten seconds, and the engine.
    shared = Processes(f"tests.python.engines.{worker}")
    atexit.register(shared.close)
    return shared


def serve(worker: str, descriptor: int) -> None:
    """Import a worker module; fork a process for each request, until the other end hangs up."""
    module = importlib.import_module(worker)
    control = socket.socket(fileno=descriptor)
    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64 << 10, 1)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            function, arguments = json.loads(request)
            os._exit(_live(Connection(descriptors[0]), getattr(module, function), arguments))
        os.close(descriptors[0])


def _live(channel: Any, function: Callable[..., None], arguments: Sequence[Any]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    tell(channel, os.getpid())
    try:
        function(channel, *arguments)
    except (BrokenPipeError, ConnectionResetError):
        # Nobody hears it any more.
        return 1
    except BaseException:  # noqa: BLE001 - the test fails with it
        channel.send((False, traceback.format_exc()))
        return 1
    return 0


def tell(channel: Any, value: Any) -> None:
    """Tell something; the parent has it, whatever becomes of this process afterwards."""
    channel.send((True, value))
