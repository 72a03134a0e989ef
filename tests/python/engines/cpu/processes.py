"""New processes that have imported vLLM: they are forked from one that has nothing else."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.python.conftest import CAPACITY_BYTES, REPOSITORY

BLOCK_TOKENS = 32
TOKENS = 1000

_DEADLINE_S = 240.0

_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # GiB; the tests take less.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Answer(NamedTuple):
    """What a request gave."""

    tokens: list[int]
    # Of the prompt: those that were not computed.
    cached: int


class Run(NamedTuple):
    """What an engine gave."""

    answers: list[Answer]
    # Of the kvring store, if there is one.
    stats: dict[str, Any]

    @property
    def tokens(self) -> list[list[int]]:
        """Those of each answer."""
        return [answer.tokens for answer in self.answers]

    @property
    def cached(self) -> list[int]:
        """How many of each prompt."""
        return [answer.cached for answer in self.answers]


def kvring_tier(path: Path, **options: Any) -> dict[str, Any]:
    """Return what vLLM's configuration says of a kvring tier."""
    named = {"type": "KvringTier", "module_path": "kvring.vllm"}
    return {**named, "path": str(path), "capacity": CAPACITY_BYTES, **options}


class Processes:
    """Calls functions of the modules beside this one, each in a new process."""

    def __init__(self, directory: Path) -> None:
        """Import vLLM in a process, before any other asks for one."""
        self._log = directory / "engine.log"
        self._context = multiprocessing.get_context("forkserver")
        modules = [f"{__package__}.{name}" for name in ("engine", "attention")]
        self._context.set_forkserver_preload(modules)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _ENVIRONMENT.items():
                patch.setenv(name, value)
            # What a killed engine leaves there goes with the other files of the tests.
            for name in ("TMPDIR", "VLLM_CONFIG_ROOT", "VLLM_CACHE_ROOT"):
                patch.setenv(name, str(directory))
            patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
            forkserver.ensure_running()

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call a function, and return what it does."""
        code, answer = self._call(function, arguments, options)
        assert code == 0, self._log.read_text(encoding="utf-8", errors="replace")[-8000:]
        return answer

    def call_until_killed(self, function: str, *arguments: Any, **options: Any) -> None:
        """Call a function that has its process killed."""
        code, _ = self._call(function, arguments, options)
        log = self._log.read_text(encoding="utf-8", errors="replace")
        assert code == -signal.SIGKILL, log[-8000:]

    def _call(self, *call: Any) -> tuple[int | None, Any]:
        answers, end = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_run, args=(end, self._log, *call))
        process.start()
        end.close()
        answer = None
        # Which comes where it ends without an answer.
        with suppress(EOFError):
            if answers.poll(_DEADLINE_S):
                answer = answers.recv()
        process.join(timeout=20)
        process.kill()
        process.join()
        return process.exitcode, answer


def _run(end: Connection, log: Path, name: str, arguments: Any, options: Any) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    where, _, function_name = name.rpartition(".")
    module = import_module(f"{__package__}.{where or 'engine'}")
    function: Callable[..., Any] = getattr(module, function_name)
    try:
        end.send(function(*arguments, **options))
    except BaseException:
        traceback.print_exc()
        raise
