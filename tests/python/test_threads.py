"""Many threads on one connector: exactly one completion each (line 7 of the contract)."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from typing_extensions import Buffer

from tests.python.conftest import Client, make_key, pattern

THREAD_COUNT = 8
OPERATION_COUNT = 100_000
KEY_COUNT = 200
VERSION_COUNT = 3


class Submitted(NamedTuple):
    """A batch that a thread has submitted."""

    operation: str
    key_numbers: list[int]
    memory: list[bytearray]


def length_of(key_number: int) -> int:
    """Return the length in bytes that a key's chunks have: some odd, all small."""
    return 1 + (key_number * 37) % 600


CONTENTS = [
    [pattern(length_of(number), number * VERSION_COUNT + version) for number in range(KEY_COUNT)]
    for version in range(VERSION_COUNT)
]
KEYS = [make_key(number) for number in range(KEY_COUNT)]


def submit_random_batches(client: Client, seed: int, most_keys: int) -> dict[int, Submitted]:
    """Submit one thread's share of the operations on keys that all threads share."""
    chance = random.Random(seed)
    connector = client.connector
    batches: dict[int, Submitted] = {}
    left = OPERATION_COUNT // THREAD_COUNT
    while left:
        numbers = chance.sample(range(KEY_COUNT), min(left, chance.randint(0, most_keys)))
        left -= len(numbers)
        keys = [KEYS[number] for number in numbers]
        operation = chance.choice(["set", "get", "exists", "delete"])
        memory: list[bytearray] = []
        if operation == "set":
            version = CONTENTS[chance.randrange(VERSION_COUNT)]
            contents: list[Buffer] = [version[number] for number in numbers]
            future_id = connector.submit_batch_set(keys, contents)
        elif operation == "get":
            memory = [bytearray(length_of(number)) for number in numbers]
            future_id = connector.submit_batch_get(keys, list(memory))
        elif operation == "exists":
            future_id = connector.submit_batch_exists(keys)
        else:
            future_id = connector.submit_batch_delete(keys)
        assert future_id not in batches
        batches[future_id] = Submitted(operation, numbers, memory)
    return batches


def assert_answered(batch: Submitted, results: list[bool]) -> None:
    """Compare the answer to a batch with what any order of all batches could give."""
    assert len(results) == len(batch.key_numbers)
    if batch.operation in ("set", "delete"):
        assert all(results)
    for number, hit, memory in zip(batch.key_numbers, results, batch.memory, strict=False):
        possible = [version[number] for version in CONTENTS] if hit else [bytes(length_of(number))]
        assert memory in possible


@pytest.mark.parametrize("most_keys", [2, 16])
def test_exactly_one_completion_for_each_batch_of_many_threads(
    client: Client, most_keys: int
) -> None:
    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        workers = [
            pool.submit(submit_random_batches, client, seed, most_keys)
            for seed in range(THREAD_COUNT)
        ]
        # As in LMCache, one thread drains while others submit.
        while not all(worker.done() for worker in workers):
            if client.is_readable():
                client.collect()
        batches: dict[int, Submitted] = {}
        for worker in workers:
            own = worker.result()
            assert not batches.keys() & own.keys(), "an id was given out twice"
            batches |= own
    for future_id, batch in batches.items():
        completion = client.wait(future_id)
        assert (completion.ok, completion.error) == (True, "")
        assert_answered(batch, completion.results)
    assert client.collect() == [], "more completions than batches"
    assert not client.is_readable()
    counts = Counter[str]()
    for batch in batches.values():
        counts[batch.operation] += len(batch.key_numbers)
    assert counts.total() == OPERATION_COUNT
    assert client.stat("in_flight") == 0
    assert client.stat("get_hits") + client.stat("get_misses") == counts["get"]
    ended = ("set_stored", "set_unchanged", "set_deleted")
    assert sum(map(client.stat, ended)) == counts["set"]
    assert client.stat("exists_hits") + client.stat("exists_misses") == counts["exists"]
    assert client.stat("deleted") + client.stat("delete_absent") == counts["delete"]
