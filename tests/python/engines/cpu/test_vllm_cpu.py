"""The real vLLM on processors: with KV from kvring it gives the tokens that it computes without."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvring._native import StoredChunks
from tests.python.conftest import MIB
from tests.python.engines.cpu.processes import BLOCK_TOKENS, TOKENS, Processes, kvring_tier
from tests.support.damage import damage
from tests.support.random_llama import prompt

# The import of vLLM is in the first one's time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A prompt's last token is always computed.
CACHED = (TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
CHUNKS = CACHED // BLOCK_TOKENS

STORED = [prompt(number, TOKENS) for number in range(3)]
NEW = [prompt(number, TOKENS) for number in range(3, 5)]
ALL = STORED + NEW
SHORT = STORED[2][: TOKENS // 4]
# All begin alike, and half of them go on alike.
SHARED = [prompt(10, 320 * (1 + one % 2)) + prompt(20 + one, 100) for one in range(8)]


@pytest.fixture(scope="module")
def cold(processes: Processes, models: list[Path]) -> dict[str, list[int]]:
    """What the first model says without a connector, by prompt."""
    prompts = [*ALL, SHORT, *SHARED]
    run = processes.call("ask", [[one] for one in prompts], model=models[0])
    tokens = run.tokens
    # They depend on the prompts.
    assert len({str(some) for some in tokens}) == len(prompts)
    return dict(zip(map(str, prompts), tokens, strict=True))


@pytest.fixture(scope="module")
def filled(
    processes: Processes, models: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A store with the chunks of some prompts; tests have copies of it."""
    store = tmp_path_factory.mktemp("filled") / "store"
    run = processes.call("ask", [STORED], model=models[0], tiers=[kvring_tier(store)])
    assert run.cached == [0] * len(STORED)
    assert run.stats["set_stored"] == CHUNKS * len(STORED)
    return store


@pytest.fixture
def store(filled: Path, store_path: Path) -> Path:
    shutil.copytree(filled, store_path, ignore=shutil.ignore_patterns("*socket*"))
    return store_path


@pytest.fixture
def ask(processes: Processes, models: list[Path], cold: dict[str, list[int]]) -> Any:
    """Ask in a new process with these tiers; the tokens are those of the cold engine."""

    def ask(tiers: Iterable[Any], *rounds: list[list[int]], **setup: Any) -> Any:
        run = processes.call("ask", rounds, model=models[0], tiers=list(tiers), **setup)
        prompts = [one for prompts in rounds for one in prompts]
        assert run.tokens == [cold[str(one)] for one in prompts]
        return run

    return ask


def test_a_new_process(ask: Any, store: Path) -> None:
    run = ask([kvring_tier(store)], *([one] for one in STORED))
    assert run.cached == [CACHED] * len(STORED)
    assert run.stats["get_hits"] == CHUNKS * len(STORED)


def test_kills_in_mid_store(
    ask: Any, processes: Processes, models: list[Path], store: Path
) -> None:
    setup = {"model": models[0], "tiers": [kvring_tier(store)]}
    for new in NEW:
        processes.call_until_killed("die_in_mid_store", STORED, new, **setup)
    run = ask([kvring_tier(store)], *([one] for one in ALL))
    assert run.cached[:3] == [CACHED] * len(STORED)
    run = ask([kvring_tier(store)], *([one] for one in ALL))
    assert run.cached == [CACHED] * len(ALL)


def test_damaged_chunks(ask: Any, store: Path) -> None:
    keys = [chunk["key"] for chunk in StoredChunks(store)]
    damaged = damage(store, *keys[5::10])
    run = ask([kvring_tier(store)], *([one] for one in STORED))
    assert run.stats["checksum_mismatch"] == run.stats["set_stored"] == len(damaged)
    assert run.stats["get_hits"] == len(keys) - len(damaged)
    assert sum(run.cached) < CACHED * len(STORED)
    run = ask([kvring_tier(store)], *([one] for one in STORED))
    assert run.cached == [CACHED] * len(STORED)


def test_a_primary_tier_smaller_than_the_prefix(ask: Any, store: Path) -> None:
    """vLLM 0.33.0 uses nothing of such a prefix."""
    tiers = [kvring_tier(store)]
    run = ask(tiers, [STORED[0]], [STORED[1]], [SHORT], primary_bytes=2 * MIB)
    assert run.cached == [0, 0, len(SHORT) // BLOCK_TOKENS * BLOCK_TOKENS]


def test_requests_with_shared_prefixes_at_once(ask: Any, store: Path) -> None:
    run = ask([kvring_tier(store)], SHARED)
    run = ask([kvring_tier(store)], SHARED)
    assert min(run.cached) >= 320
    assert run.stats["get_hits"] > 0


def test_aborts_in_every_state(
    processes: Processes, models: list[Path], cold: dict[str, list[int]], store: Path
) -> None:
    setup = {"model": models[0], "tiers": [kvring_tier(store)]}
    run = processes.call("abort_in_every_state", STORED, NEW, **setup)
    assert run.tokens == [cold[str(one)] for one in ALL]
    assert min(run.cached[:3]) > 0
    assert run.stats["get_hits"] > 0


def test_dtypes_and_models_on_one_path(
    processes: Processes, models: list[Path], cold: dict[str, list[int]], store: Path
) -> None:
    """16 bits are compared with what comes from the primary tier: vLLM's own cache changes them."""
    question = STORED[0]
    tiers = [kvring_tier(store)]
    setups: list[dict[str, Any]] = [{"model": models[1]}, {"model": models[0], "dtype": "bfloat16"}]
    others = [processes.call("ask_twice", [question], tiers=tiers, **setup) for setup in setups]
    assert [run.cached for run in others] == [[0, CACHED]] * 2
    expected = [[tokens] for _, tokens in (run.tokens for run in others)]
    reference = processes.call("ask", [[question]], model=models[1])
    assert expected[0] == reference.tokens
    setups.append({"model": models[0]})
    expected.append([cold[str(question)]])
    for setup, tokens in zip(setups, expected, strict=True):
        run = processes.call("ask", [[question]], tiers=tiers, **setup)
        assert run.tokens == tokens
        assert run.cached == [CACHED]
        assert run.stats["get_hits"] == CHUNKS
    assert expected[0] != expected[2]


def test_other_weights_in_the_same_directory(
    processes: Processes, models: list[Path], cold: dict[str, list[int]], store_path: Path
) -> None:
    model = store_path.parent / "model"
    setup = {"model": model, "tiers": [kvring_tier(store_path)]}
    tokens = []
    for weights in models:
        shutil.copytree(weights, model, dirs_exist_ok=True)
        computed, stored = (processes.call("ask", [STORED[:1]], **setup) for _ in range(2))
        assert (computed.cached, stored.cached) == ([0], [CACHED])
        assert computed.tokens == stored.tokens
        tokens += stored.tokens
    assert tokens[0] == cold[str(STORED[0])] != tokens[1]


def test_promotion_in_front_of_files(ask: Any, tmp_path: Path) -> None:
    files = {"type": "fs", "root_dir": str(tmp_path / "files")}
    own = [kvring_tier(tmp_path / node, promote=True) for node in "ab"]
    ask([own[0], files], STORED)
    run = ask([own[1], files], STORED)
    assert run.cached == [CACHED] * len(STORED)
    assert run.stats["set_stored"] == CHUNKS * len(STORED)
    run = ask([own[1]], STORED)
    assert run.cached == [CACHED] * len(STORED)
