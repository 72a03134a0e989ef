"""The same vLLM below which LMCache is, as its server has it."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform

from kvring._native import StoredChunks
from kvring.cli import programs
from tests.python.engines.cpu.engine import CpuEngine
from tests.python.engines.cpu.processes import Run


def ask(
    prompts: Sequence[list[int]],
    packages: str,
    port: int,
    killed: tuple[int, Path] | None = None,
    **setup: Any,
) -> Run:
    """Ask for one prompt after the other, and for the first one again; then it comes from L1.

    Args:
        prompts: To ask for.
        packages: Where LMCache is: behind those of this environment.
        port: Of its server.
        killed: A server and its store: all are asked for at once, and it is killed as soon as the
            store has a chunk.
        setup: Of the engine.
    """
    # vLLM does it again in each worker, and cannot once LMCache has imported llvmlite.
    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda _: None)
    sys.path.append(packages)
    # What `kvring config` prints.
    connector = json.loads(programs.lmcache({}, 1.0, "plugin", huge_pages=False).commands[1][-1])
    connector["kv_connector_extra_config"] |= {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": port,
    }
    with CpuEngine(connector=connector, **setup) as engine:
        if killed:
            server, store = killed
            names = [engine.add(prompt) for prompt in prompts]
            while not any(StoredChunks(store)):
                engine.step()
            os.kill(server, signal.SIGKILL)
            engine.settle()
            answers = [engine.answers[name] for name in names]
        else:
            answers = [answer for prompt in prompts for answer in engine.ask(prompt)]
        engine.forget()
        return Run(answers + engine.ask(prompts[0]), {})
