"""What LMCache asks of a connector, on every cell of the matrix."""

import itertools
import operator
import random
from collections.abc import Callable

import pytest

import kvring
from tests.python.conftest import (
    MIB,
    filled_memory,
    make_key,
    make_memory,
    pattern,
)
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


def test_a_key_has_its_last_chunk_until_it_is_deleted(store: Store) -> None:
    client = store.open()
    keys = [make_key(1), "long" * 1000, "line\nend/..\N{SNOWMAN}"]
    for turn, length_bytes in enumerate((4096, 4096, 70_001, 70_001, 5)):
        chunks = {key: pattern(length_bytes, turn // 2 * 10 + i) for i, key in enumerate(keys)}
        client.store(chunks)
        assert {key: client.load(key, length_bytes) for key in keys} == chunks
    assert client.stat("set_unchanged") == 2 * len(keys)
    assert client.delete([*keys, "never there"]) == [True] * 4
    assert client.exists(keys) == [False] * 3
    assert [client.load(key, 5) for key in keys] == [None] * 3


def test_operations_on_a_key_keep_their_order(store: Store) -> None:
    client = store.open(io_threads=3)
    connector = client.connector
    old, new = pattern(300_000, 1), pattern(5_001, 2)
    waits: list[tuple[int, list[bool]]] = []
    loads: list[tuple[memoryview, bytes]] = []
    # Behind a SET of another length without an answer a load may still have the chunk before it.
    either: list[tuple[int, memoryview]] = []

    def load(key: str, chunk: bytes, *, is_held: bool) -> None:
        memory = make_memory(len(chunk), 1)
        waits.append((connector.submit_batch_get([key], [memory]), [is_held]))
        loads.append((memory, chunk if is_held else bytes(len(chunk))))

    for number in range(30 if store.is_full else 10):
        key = make_key(number)
        load(key, old, is_held=False)
        waits.append((connector.submit_batch_set([key], [old]), [True]))
        load(key, old, is_held=True)
        waits.append((connector.submit_batch_set([key], [new]), [True]))
        memory = make_memory(len(old), 1)
        either.append((connector.submit_batch_get([key], [memory]), memory))
        load(key, new, is_held=True)
        waits.append((connector.submit_batch_delete([key]), [True]))
        load(key, new, is_held=False)
        waits.append((connector.submit_batch_exists([key]), [False]))
        waits.append((connector.submit_batch_set([key], [old]), [True]))
        load(key, old, is_held=True)
    for future_id, expected in waits:
        completion = client.wait(future_id)
        assert completion[1:] == (True, "", expected)
    assert all(bytes(memory) == chunk for memory, chunk in loads)
    for future_id, memory in either:
        completion = client.wait(future_id)
        assert completion[1:3] == (True, "")
        assert bytes(memory) == (old if completion.results == [True] else bytes(len(old)))


def test_empty_batches_complete_and_wrong_ones_are_refused(store: Store) -> None:
    client = store.open()
    connector = client.connector
    empty = [
        connector.submit_batch_set([], []),
        connector.submit_batch_get([], []),
        connector.submit_batch_exists([]),
        connector.submit_batch_delete([]),
    ]
    assert [one[1:] for one in client.wait_all(empty)] == [(True, "", [])] * 4
    wrong: list[Callable[[], int]] = [
        lambda: connector.submit_batch_set(["a"], []),
        lambda: connector.submit_batch_set(["a"], [b""]),
        lambda: connector.submit_batch_get(["a"], [b"read-only"]),
        lambda: connector.submit_batch_get(["a"], [memoryview(bytearray(8))[::2]]),
        lambda: connector.submit_batch_exists(["a" * 4097]),
    ]
    for submit in wrong:
        with pytest.raises(kvring.SubmitError):
            submit()
    assert connector.drain_completions() == []
    assert not client.is_readable()


def test_each_of_many_mixed_batches_is_answered_once_as_if_done_in_order(store: Store) -> None:
    """But for what is on its way: EXISTS does not know it, and a load may have an older chunk."""
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
                waits.append((connector.submit_batch_get(keys, list(memory)), hits))
                found = [list(stored[key]) or [bytes(4)] for key in keys]
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
