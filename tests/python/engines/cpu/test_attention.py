"""vLLM on processors, and models whose layers hold unlike things: each group has its own chunks."""

from pathlib import Path

import pytest

from kvring._native import StoredChunks
from tests.python.engines.cpu.processes import TOKENS, Processes, kvring_tier
from tests.support.damage import damage
from tests.support.random_llama import prompt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# One after the other: vLLM 0.33.0 alone says something else of the hybrid model, if it has one
# prompt in a step with what follows another.
PROMPTS = [prompt(number, TOKENS) for number in range(2)]
ROUNDS = [[one] for one in PROMPTS]


@pytest.mark.parametrize("kind", ["sliding_window", "hybrid", "eagle"])
def test_a_new_process_and_damage(
    kind: str, processes: Processes, tmp_path: Path, store_path: Path
) -> None:
    setup = processes.call(f"attention.write_{kind}", tmp_path / "model")
    setup["tiers"] = [kvring_tier(store_path)]
    cold, primary = processes.call("ask_twice", PROMPTS, **setup), slice(len(PROMPTS), None)
    expected, cached = cold.tokens[primary], cold.cached[primary]
    assert cold.tokens == expected * 2
    assert len({str(tokens) for tokens in expected}) == len(PROMPTS)
    assert min(cached) > TOKENS * 3 // 4

    run = processes.call("ask", ROUNDS, **setup)
    assert (run.tokens, run.cached) == (expected, cached)
    assert run.stats["get_hits"] == cold.stats["set_stored"] > 0

    keys = [chunk["key"] for chunk in StoredChunks(store_path)]
    damaged = damage(store_path, *keys[5::10])
    run = processes.call("ask", ROUNDS, **setup)
    assert run.tokens == expected
    assert 0 < run.stats["checksum_mismatch"] <= len(damaged)
    assert sum(run.cached) < sum(cached)
