"""Processes that use vLLM, one after the other, each a fork of one that has imported it."""

import importlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from typing_extensions import Self

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY, child_command

# By name: to import it takes vLLM, and ten seconds, or more on a machine that is busy.
_WORKER = "tests.python.engines.vllm_worker"
_IMPORT_DEADLINE_S = 4 * HANG_DEADLINE_S


class Lives:
    """Starts functions of vllm_worker.py in processes of their own, and hears what they tell."""

    def __init__(self) -> None:
        """Nothing runs before the first life."""
        self._parent: subprocess.Popen[str] | None = None
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._pid: int | None = None
        self.status: int | None = None

    def begin(self, function: str, *arguments: Any) -> None:
        """Call a function in a new process; the one before must have ended."""
        assert self._pid is None
        if self._parent is None:
            self._start_parent()
        assert self._parent is not None
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps([function, arguments]) + "\n")
        self._parent.stdin.flush()
        name, _, pid = self._next(_IMPORT_DEADLINE_S).partition(" ")
        assert name == "pid"
        self._pid = int(pid)
        self.status = None

    def told(self) -> Iterator[list[str]]:
        """Yield the words of each line that the process tells, until it has ended."""
        while self._pid is not None:
            name, *words = self._next().split(" ")
            if name == "ended":
                self._pid, self.status = None, int(words[0])
                return
            yield [name, *words]

    def wait_for(self, name: str) -> list[str]:
        """Return the other words of the first line that begins with this one."""
        for first, *words in self.told():
            if first == name:
                return words
        raise AssertionError(f"it ended with status {self.status}, and did not tell {name!r}")

    def run(self, function: str, *arguments: Any) -> list[list[str]]:
        """Call a function in a new process, and return what it told; it must end in order."""
        self.begin(function, *arguments)
        told = list(self.told())
        assert self.status == 0, told
        return told

    def kill(self) -> list[list[str]]:
        """Kill the process, and return what it told before, and nobody has heard."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGKILL)
        told = list(self.told())
        assert self.status == -signal.SIGKILL
        return told

    def _start_parent(self) -> None:
        self._parent = subprocess.Popen(
            child_command(_serve_in_child),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(self._parent,), daemon=True)
        self._listener.start()

    def _listen(self, parent: "subprocess.Popen[str]") -> None:
        assert parent.stdout is not None
        for line in parent.stdout:
            self._told.put(line.rstrip("\n"))
        self._told.put("ended 1")

    def _next(self, deadline_s: float = HANG_DEADLINE_S) -> str:
        try:
            return self._told.get(timeout=deadline_s)
        except queue.Empty:
            raise AssertionError("the process hangs") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pid is not None:
            self.kill()
        if self._parent is not None:
            self._parent.kill()
            self._listener.join()
            self._parent.communicate()


def _serve_in_child() -> None:
    serve: Callable[[], None] = importlib.import_module(_WORKER).serve
    serve()
