"""What LMCache asks of a connector, on every cell of the matrix."""

import itertools
import operator
import os
import random

import pytest

from tests.python.conftest import MIB, filled_memory, make_key, make_memory, pattern
from tests.python.matrix.conftest import Store

LENGTHS_BYTES = (1, 511, 512, 513, 4095, 4096, 4097, 70_001, 522_240, MIB, MIB + 1)
SHIFTS_BYTES = (0, 1, 511, 512, 4095)


@pytest.mark.parametrize("durability", ["best_effort", "persistent"])
def test_chunks_of_all_lengths_from_and_to_all_addresses(store: Store, durability: str) -> None:
    client = store.open(durability=durability)
    kinds = list(itertools.product(LENGTHS_BYTES, SHIFTS_BYTES))
    chunks = {make_key(seed): pattern(length, seed) for seed, (length, _) in enumerate(kinds)}
    shifts = [shift for _, shift in kinds]
    stored = [filled_memory(one, shift) for one, shift in zip(chunks.values(), shifts, strict=True)]
    assert client.set(list(chunks), stored)[1:] == (True, "", [True] * len(kinds))
    assert client.exists(list(chunks)) == [True] * len(kinds)
    for turn in range(len(SHIFTS_BYTES)):
        shifts = shifts[1:] + shifts[:1]
        order = random.Random(turn).sample(sorted(chunks), len(chunks))
        memory = [
            make_memory(len(chunks[key]), shift) for key, shift in zip(order, shifts, strict=True)
        ]
        assert client.get(order, memory)[1:] == (True, "", [True] * len(order))
        assert [bytes(one) for one in memory] == [chunks[key] for key in order]


def test_a_miss_leaves_its_buffer_and_a_wrong_length_is_one(store: Store) -> None:
    client = store.open()
    chunk = pattern(10_000, 1)
    client.store({"held": chunk})
    keys = ["held", "held", "missing", "held", "held"]
    lengths = [9_999, 10_001, 10_000, 10_000, 1]
    memory = [filled_memory(b"\x5a" * length) for length in lengths]
    completion = client.get(keys, memory)
    assert completion[1:] == (True, "", [False, False, False, True, False])
    found = [bytes(one) for one in memory]
    assert found.pop(3) == chunk
    assert all(set(one) == {0x5A} for one in found)


def test_each_of_many_mixed_batches_is_answered_once_as_if_done_in_order(store: Store) -> None:
    """But for what is on its way: EXISTS does not know it; a load may miss or have an older one."""
    client = store.open(lease_s=0)
    connector = client.connector
    chance = random.Random(7)
    content = memoryview(pattern(200_000, 3))
    names = [make_key(number) for number in range(40)]
    held: dict[str, bytes] = {}
    # All that was stored since the last DELETE.
    stored: dict[str, list[bytes]] = {name: [] for name in names}
    waits: list[tuple[int, list[bool]]] = []
    loads: list[tuple[memoryview, list[bytes]]] = []
    asked: list[tuple[int, list[bool]]] = []
    for version in range(1500 if store.is_full else 300):
        keys = chance.sample(names, chance.randint(1, 12))
        match chance.choice(["set", "get", "get", "exists", "delete"]):
            case "set":
                chunks = [
                    bytes(content[version : version + chance.choice([100, 4096, 33_333, 150_000])])
                    for _ in keys
                ]
                waits.append((connector.submit_batch_set(keys, list(chunks)), [True] * len(keys)))
                held |= zip(keys, chunks, strict=True)
                for key, chunk in zip(keys, chunks, strict=True):
                    stored[key].append(chunk)
            case "get":
                memory = [make_memory(len(held.get(key, b"miss"))) for key in keys]
                hits = [key in held for key in keys]
                asked.append((connector.submit_batch_get(keys, list(memory)), hits))
                found = [
                    [*stored[key], bytes(len(one))] for key, one in zip(keys, memory, strict=True)
                ]
                loads += zip(memory, found, strict=True)
            case "exists":
                asked.append((connector.submit_batch_exists(keys), [key in held for key in keys]))
            case "delete":
                waits.append((connector.submit_batch_delete(keys), [True] * len(keys)))
                for key in keys:
                    held.pop(key, None)
                    stored[key].clear()
    for future_id, expected in waits:
        assert client.wait(future_id)[1:] == (True, "", expected)
    for future_id, may_be_held in asked:
        completion = client.wait(future_id)
        assert completion[1:3] == (True, "")
        assert all(map(operator.le, completion.results, may_be_held))
    assert all(bytes(memory) in chunks for memory, chunks in loads)
    assert connector.drain_completions() == []
    assert not client.is_readable()
    assert client.stat("evicted") == 0
    assert {key: client.load(key, len(chunk)) for key, chunk in held.items()} == held


def test_registered_memory_moves_the_same_bytes(store: Store) -> None:
    client = store.open()
    memory = make_memory(MIB)
    with client.connector.register_memory(memory):
        memory[:] = pattern(MIB, 1)
        assert client.set(["chunk"], [memory])[1:] == (True, "", [True])
        memory[:] = bytes(MIB)
        assert client.get(["chunk"], [memory])[1:] == (True, "", [True])
        assert memory == pattern(MIB, 1)
    is_fixed = client.connector.stats()["transfers_fixed"] > 0
    # Rings take memory that is registered later from Linux 5.19 on.
    release = [int(one) for one in os.uname().release.split(".")[:2]]
    assert is_fixed == (store.cell.engine == "io_uring" and release >= [5, 19])
