"""A thousand random jobs of vLLM's tier, and a kill every now and then: nothing lost or wrong."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.python.conftest import CAPACITY_BYTES
from tests.python.engines.processes import processes

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

SEED = 20261124
JOBS = 1000
KILLS = 20
IN_ORDER_JOBS = 40
# A capacity in which nothing is evicted.
CAPACITY = CAPACITY_BYTES


@pytest.mark.slow
def test_a_thousand_random_jobs_and_kills_in_between(store_path: Path) -> None:
    choose = random.Random(SEED)
    acknowledged: set[int] = set()
    jobs: Counter[str] = Counter()

    def note(told: tuple[str, list[int]]) -> None:
        name, numbers = told
        jobs[name] += 1
        acknowledged.update(numbers if name == "stored" else [])

    life = kills = 0
    with processes("vllm_worker").started() as start:
        while kills < KILLS or jobs["stored"] + jobs["loaded"] < JOBS:
            life += 1
            in_order = life % 4 == 0
            count = IN_ORDER_JOBS if in_order else 1_000_000
            arguments = (str(store_path), CAPACITY, f"{SEED}-{life}", sorted(acknowledged), count)
            process = start("live", *arguments)
            if not in_order:
                # Some are killed while they open the store, or look whether all is there.
                if choose.random() < 0.8:
                    note(process.hear())
                time.sleep(choose.uniform(0.0, 0.3))
                kills += 1
                process.kill()
            # What it raised is raised here.
            for told in process.hear_rest():
                note(told)
            process.end()
    assert jobs["verified"] >= KILLS
    assert len(acknowledged) > 200
    print(f"{jobs} in {life} lives, {kills} of which were killed; {len(acknowledged)} chunks")
