"""A thousand random jobs of vLLM's tier, and a kill every now and then: nothing lost or wrong."""

import random
import time
from pathlib import Path

import pytest

from tests.python.conftest import CAPACITY_BYTES
from tests.python.engines.vllm_lives import Lives

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

SEED = 20261124
JOBS = 1000
KILLS = 20
IN_ORDER_JOBS = 40
# A capacity in which nothing is evicted.
CAPACITY = CAPACITY_BYTES


@pytest.mark.slow
def test_a_thousand_random_jobs_and_kills_in_between(store_path: Path, vllm_lives: Lives) -> None:
    choose = random.Random(SEED)
    acknowledged: set[int] = set()
    jobs = kills = verified = 0

    def hear(name: str, words: list[str]) -> None:
        nonlocal jobs, verified
        jobs += name in ("stored", "loaded")
        verified += name == "verified"
        if name == "stored":
            acknowledged.update(map(int, words))

    life = 0
    while kills < KILLS or jobs < JOBS:
        life += 1
        in_order = life % 4 == 0
        count = IN_ORDER_JOBS if in_order else 1_000_000
        arguments = (str(store_path), CAPACITY, f"{SEED}-{life}", sorted(acknowledged), count)
        vllm_lives.begin("live", *arguments)
        if not in_order:
            # Some are killed while they open the store, or look whether all is there.
            if choose.random() < 0.8:
                vllm_lives.wait_for("verified")
                verified += 1
            time.sleep(choose.uniform(0.0, 0.3))
            kills += 1
        for name, *words in vllm_lives.told() if in_order else vllm_lives.kill():
            hear(name, words)
        assert vllm_lives.status == (0 if in_order else -9), "see what the process printed"
    assert verified >= KILLS
    assert len(acknowledged) > 200
    print(f"{jobs} jobs in {life} lives, {kills} of which were killed; {len(acknowledged)} chunks")
