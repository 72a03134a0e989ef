"""Many threads on one connector: exactly one completion each (line 7 of the contract)."""

import itertools
import random
import select
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from typing_extensions import Buffer

from tests.python.conftest import HANG_DEADLINE_S, Client, make_key, pattern

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


def keep_asking(client: Client, seed: int, done: threading.Event) -> Counter[str]:
    """Call everything that is no submit, in any order, until told to end; count the calls."""
    chance = random.Random(seed)
    connector = client.connector
    calls = Counter[str]()

    def check() -> None:
        assert connector.check()["problems"] == []

    upkeep: dict[str, Callable[[], object]] = {
        "pin": lambda: connector.pin(chance.sample(KEYS, 20)),
        "unpin": lambda: connector.unpin(chance.sample(KEYS, 20)),
        "usage": connector.usage,
        "keys": lambda: connector.keys("test/model", 0, chance.randint(1, 100)),
        "purge": lambda: connector.purge(chance.choice(["test/model", "another/model"])),
        "expire": connector.expire,
        "check": check,
        "stats": connector.stats,
        "counters": connector.counters,
        "prefix": lambda: connector.submit_batch_prefix(chance.sample(KEYS, 20)),
    }
    while not done.is_set():
        name = chance.choice(list(upkeep))
        upkeep[name]()
        calls[name] += 1
    return calls


@pytest.mark.parametrize(
    "options", [{}, {"admit": "second_use"}, {"quotas": {"test/model": "1MiB"}}], ids=str
)
def test_upkeep_goes_on_beside_a_load(
    open_client: Callable[..., Client], options: dict[str, Any]
) -> None:
    """Nothing waits for ever, and everything fits together at every moment."""
    client = open_client(16 << 20, ttl=1, io_threads=2, **options)
    done = threading.Event()
    flood = pattern(1 << 20, 1)
    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        askers = [pool.submit(keep_asking, client, seed, done) for seed in range(4)]
        workers = [pool.submit(submit_random_batches, client, seed, 16) for seed in range(3)]
        try:
            number = 0
            while number < 2 or not all(worker.done() for worker in workers):
                number += 1
                client.set([f"flood {number} {part}" for part in range(16)], [flood] * 16)
        finally:
            done.set()
        calls = sum((asker.result() for asker in askers), Counter[str]())
    assert len(calls) == 10
    assert client.stat("set_not_admitted" if "admit" in options else "evicted") > 0
    answered = client.wait_all(itertools.chain(*(worker.result() for worker in workers)))
    assert all(completion.ok for completion in answered)
    client.connector.purge("test/model")
    client.connector.unpin(KEYS)
    client.connector.purge("test/model")
    left = client.connector.usage().get("test/model", {"keys": 0, "remembered_keys": 0})
    assert (left["keys"], left["remembered_keys"]) == (0, 0)


def test_several_threads_may_drain(client: Client) -> None:
    """No completion is handed to two of them, and none to nobody."""
    drained: list[list[int]] = [[] for _ in range(4)]
    done = threading.Event()

    def drain(into: list[int]) -> None:
        poll = select.poll()
        poll.register(client.connector.event_fd(), select.POLLIN)
        while not done.is_set():
            if poll.poll(10):
                into += [completion[0] for completion in client.connector.drain_completions()]

    threads = [threading.Thread(target=drain, args=(into,), daemon=True) for into in drained]
    for thread in threads:
        thread.start()
    submitted = [
        client.connector.submit_batch_set([KEYS[number % KEY_COUNT]], [b"content"])
        for number in range(5000)
    ]
    deadline = threading.Event()
    timer = threading.Timer(HANG_DEADLINE_S, deadline.set)
    timer.daemon = True
    timer.start()
    while sum(map(len, drained)) < len(submitted) and not deadline.wait(0.001):
        pass
    timer.cancel()
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*drained)) == submitted
