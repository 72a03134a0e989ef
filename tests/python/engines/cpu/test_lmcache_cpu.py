"""The real vLLM and the server of LMCache above kvring give the tokens that vLLM computes alone.

Minutes, most of them imports: `make test-lmcache-engine`, not `make test`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvring._native import StoredChunks
from tests.python.conftest import until
from tests.python.engines.cpu.processes import TOKENS, Processes, Run
from tests.support.adapter_spec import adapter_spec
from tests.support.damage import damage
from tests.support.deployment import CacheServer
from tests.support.random_llama import prompt

if "KVRING_TEST_LMCACHE_ENGINE" not in os.environ:
    pytest.skip("takes minutes (make test-lmcache-engine)", allow_module_level=True)

pytestmark = [pytest.mark.lmcache, pytest.mark.slow, pytest.mark.timeout(1800)]

CHUNK_TOKENS = 64
CHUNKS = (TOKENS - 1) // CHUNK_TOKENS
CACHED = CHUNKS * CHUNK_TOKENS
PROMPTS = [prompt(number, TOKENS) for number in range(3)]


class Server(CacheServer):
    """One with short chunks."""

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--chunk-size", str(CHUNK_TOKENS)]

    def wait_for_chunks(self, count: int) -> None:
        """Wait until the store has so many."""
        store = Path(self._spec["adapter_params"]["path"])
        until(f"chunk {count}", lambda: len(list(StoredChunks(store))) >= count)


Ask = Callable[..., Run]


@pytest.fixture(params=["plugin", "native_plugin"])
def adapter(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def ask(processes: Processes, models: list[Path], adapter: str, store_path: Path) -> Ask:
    """Ask in a new engine above a new server."""
    program = shutil.which("lmcache")
    assert program is not None
    (packages,) = Path(program).parent.parent.glob("lib/python3*/site-packages")

    def ask(
        prompts: list[list[int]],
        stored: int = 0,
        is_killed: bool = False,
        dtype: str = "float32",
        **options: Any,
    ) -> Run:
        spec = adapter_spec(adapter, store_path, "256MiB", **options)
        log = store_path.parent / "server.log"
        with Server(spec, log, 0.25, transfer_mode="engine_driven") as server:
            assert server._process is not None
            run: Run = processes.call(
                "lmcache_engine.ask",
                prompts,
                packages=str(packages),
                port=server.port,
                killed=(server._process.pid, store_path) if is_killed else None,
                model=models[0],
                dtype=dtype,
            )
            if not is_killed:
                server.wait_for_chunks(stored)
                server.stop()
        return run

    return ask


def cold(processes: Processes, model: Path, prompts: list[list[int]], **setup: Any) -> list[Any]:
    """Return what the engine says alone."""
    run: Run = processes.call("ask", [[one] for one in prompts], model=model, **setup)
    return run.tokens


@pytest.fixture(scope="module")
def alone(processes: Processes, models: list[Path]) -> list[list[int]]:
    """The tokens for the prompts, and for the first one again."""
    tokens = cold(processes, models[0], PROMPTS)
    return [*tokens, tokens[0]]


def test_a_new_pair_and_damage(ask: Ask, alone: list[list[int]], store_path: Path) -> None:
    for cached in (0, CACHED):
        run = ask(PROMPTS, stored=CHUNKS * len(PROMPTS))
        assert run.tokens == alone
        assert run.cached == [cached] * len(PROMPTS) + [CACHED]
    keys = [chunk["key"] for chunk in StoredChunks(store_path)]
    damage(store_path, *keys[5::10])
    run = ask(PROMPTS, stored=CHUNKS * len(PROMPTS))
    assert run.tokens == alone
    assert 0 < sum(run.cached[:3]) < CACHED * len(PROMPTS)
    run = ask(PROMPTS)
    assert run.tokens == alone
    assert run.cached == [CACHED] * len(alone)


def test_a_kill_of_the_server_while_it_stores(
    ask: Ask, alone: list[list[int]], store_path: Path
) -> None:
    assert ask(PROMPTS, is_killed=True).tokens == alone
    assert 0 < len(list(StoredChunks(store_path))) < CHUNKS * len(PROMPTS)
    for stored in (CHUNKS * len(PROMPTS), 0):
        run = ask(PROMPTS, stored=stored)
        assert run.tokens == alone
    assert run.cached == [CACHED] * len(alone)


def test_two_dtypes_under_one_name(
    ask: Ask, adapter: str, processes: Processes, models: list[Path]
) -> None:
    """`native_plugin` is not told dtypes: they take an identity each."""
    for dtype in ("float16", "bfloat16"):
        options = {"identity": dtype} if adapter == "native_plugin" else {}
        run = ask(PROMPTS[:1], stored=CHUNKS, dtype=dtype, **options)
        assert run.cached == [0, CACHED]
        assert run.tokens[0] == cold(processes, models[0], PROMPTS[:1], dtype=dtype)[0]
    # vLLM's own cache changes last bits: it is compared with what came from L1.
    again = ask(PROMPTS[:1], dtype="bfloat16", **options)
    assert again.answers == [run.answers[1]] * 2
