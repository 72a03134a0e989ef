"""What set, get, exists and delete answer (lines 7 to 15 of the contract)."""

from collections.abc import Callable

import pytest

from tests.python.conftest import MIB, Client, make_key, make_memory, pattern, until

EVICTED_COUNT = 130_000


@pytest.mark.parametrize("held_count", [0, 3])
def test_an_empty_batch_completes(client: Client, held_count: int) -> None:
    client.store({str(number): b"content" for number in range(held_count)})
    connector = client.connector
    future_ids = [
        connector.submit_batch_set([], []),
        connector.submit_batch_get([], []),
        connector.submit_batch_exists([]),
        connector.submit_batch_delete([]),
    ]
    completions = client.wait_all(future_ids)
    assert [completion[1:] for completion in completions] == [(True, "", [])] * 4
    assert client.stat("keys") == held_count


@pytest.mark.parametrize("key_count", [1, 2, 127, 128, 129, 1000])
def test_there_is_exactly_one_bool_for_each_key(client: Client, key_count: int) -> None:
    """Line 8; in the order of the keys."""
    keys = [make_key(number) for number in range(key_count)]
    held = keys[::3]
    assert client.set(held, [b"content"] * len(held)).results == [True] * len(held)
    expected = [number % 3 == 0 for number in range(key_count)]
    assert client.exists(keys) == expected
    memory = [bytearray(7) for _ in keys]
    assert client.get(keys, memory)[1:] == (True, "", expected)
    assert memory == [bytearray(b"content") if hit else bytearray(7) for hit in expected]
    assert client.delete(keys) == [True] * key_count
    assert client.exists(keys) == [False] * key_count


def test_a_miss_is_a_normal_answer_and_leaves_its_buffer(client: Client) -> None:
    """Line 9."""
    client.store({make_key(1): pattern(10_000, 1), make_key(3): pattern(10_000, 3)})
    before = pattern(10_000, 99)
    memory = [bytearray(before) for _ in range(4)]
    keys = [make_key(number) for number in (1, 2, 3, 4)]
    assert client.get(keys, memory)[1:] == (True, "", [True, False, True, False])
    assert memory == [pattern(10_000, 1), before, pattern(10_000, 3), before]


@pytest.mark.parametrize("difference_bytes", [-9_999, -1, 1, 2288, 4096, MIB])
def test_another_length_is_a_miss_and_leaves_its_buffer(
    client: Client, difference_bytes: int
) -> None:
    """Line 9; also where both take the same number of blocks."""
    client.store({"key": pattern(10_000, 1)})
    before = pattern(10_000 + difference_bytes, 99)
    memory = bytearray(before)
    assert client.get(["key"], [memory])[1:] == (True, "", [False])
    assert memory == before
    assert client.load("key", 10_000) == pattern(10_000, 1)


def test_storing_the_same_again_is_ok_and_writes_nothing(client: Client) -> None:
    """Line 12."""
    chunks = {make_key(seed): pattern(10_000, seed) for seed in range(10)}
    client.store(chunks)
    written_bytes = client.stat("written_bytes")
    client.store(chunks)
    assert client.stat("written_bytes") == written_bytes
    assert client.stat("set_unchanged") == len(chunks)
    assert {key: client.load(key, 10_000) for key in chunks} == chunks


def test_storing_other_bytes_replaces_the_chunk(client: Client) -> None:
    client.store({"key": pattern(100_000, 1)})
    client.store({"key": pattern(100_000, 2)})
    assert client.load("key", 100_000) == pattern(100_000, 2)
    client.store({"key": pattern(5_000, 3)})
    assert client.load("key", 100_000) is None
    assert client.load("key", 5_000) == pattern(5_000, 3)
    assert (client.stat("keys"), client.stat("stored_bytes")) == (1, 5_000)
    assert client.stat("allocated_bytes") == 8192


def test_a_set_that_fails_leaves_nothing_half_written(open_client: Callable[..., Client]) -> None:
    """Line 10: a key is held whole, with True, or not at all."""
    client = open_client(64 * MIB, quotas={"test/model@small": "1MiB"})
    chunks = {
        make_key(seed, "small" if seed % 3 else ""): pattern(MIB + 1 + seed, seed)
        for seed in range(40)
    }
    completion = client.set(list(chunks), list(chunks.values()))
    assert not completion.ok
    assert len(completion.results) == len(chunks)
    assert {True, False} == set(completion.results)
    assert client.exists(list(chunks)) == completion.results
    for (key, content), stored in zip(chunks.items(), completion.results, strict=True):
        assert client.load(key, len(content)) == (content if stored else None)


def test_a_delete_is_seen_by_everything_submitted_after_it(client: Client) -> None:
    """Line 13."""
    client.store({make_key(seed): pattern(70_000, seed) for seed in range(3)})
    connector = client.connector
    memory = make_memory(70_000)
    deleted = connector.submit_batch_delete([make_key(1)])
    later = [
        connector.submit_batch_exists([make_key(1)]),
        connector.submit_batch_get([make_key(1)], [memory]),
    ]
    assert client.wait(deleted)[1:] == (True, "", [True])
    assert [client.wait(one).results for one in later] == [[False], [False]]
    assert client.exists([make_key(seed) for seed in range(3)]) == [True, False, True]


def test_deleting_what_is_not_here_is_true(client: Client) -> None:
    """Line 15: LMCache would pick a key that is answered False again and again."""
    client.store({"key": b"content"})
    assert client.delete(["never", "key", "never either"]) == [True, True, True]
    assert client.delete(["key"]) == [True]
    assert (client.stat("deleted"), client.stat("delete_absent")) == (1, 3)


def test_one_eviction_step_of_a_large_store(client: Client) -> None:
    """Line 13: a delete may name 20 % of all keys of 4 TB."""
    client.store({make_key(number): b"content" for number in range(500)})
    keys = [make_key(number) for number in range(EVICTED_COUNT)]
    assert client.delete(keys) == [True] * EVICTED_COUNT
    assert client.exists(keys) == [False] * EVICTED_COUNT
    assert (client.stat("keys"), client.stat("deleted")) == (0, 500)


def test_operations_on_one_key_keep_their_order(client: Client) -> None:
    """Line 14: submitted one after the other, none waited for."""
    length_bytes = 3 * MIB
    connector = client.connector
    for seed in range(10):
        old, new = pattern(length_bytes, seed), pattern(length_bytes, seed + 1000)
        memory = [make_memory(length_bytes) for _ in range(4)]
        future_ids = [
            connector.submit_batch_set(["key"], [old]),
            connector.submit_batch_get(["key"], [memory[0]]),
            connector.submit_batch_set(["key"], [new]),
            connector.submit_batch_get(["key"], [memory[1]]),
            connector.submit_batch_delete(["key"]),
            connector.submit_batch_get(["key"], [memory[2]]),
            connector.submit_batch_exists(["key"]),
            connector.submit_batch_set(["key"], [old]),
            connector.submit_batch_get(["key"], [memory[3]]),
        ]
        answers = [completion.results[0] for completion in client.wait_all(future_ids)]
        assert answers == [True, True, True, True, True, False, False, True, True]
        loaded = [bytes(one) for one in memory]
        # The second SET has no answer yet: either is right.
        assert loaded.pop(1) in (old, new)
        assert loaded == [old, bytes(length_bytes), old]
        client.delete(["key"])


def test_readers_outlive_a_delete_and_the_next_tenant_of_their_place(client: Client) -> None:
    """Line 14: a running load gets its bytes, whatever is deleted and stored meanwhile."""
    length_bytes = 4 * MIB
    connector = client.connector
    for seed in range(10):
        content = pattern(length_bytes, seed)
        client.store({"key": content})
        memory = [make_memory(length_bytes) for _ in range(4)]
        loads = [connector.submit_batch_get(["key"], [one]) for one in memory]
        deleted = connector.submit_batch_delete(["key"])
        other = connector.submit_batch_set(["other"], [pattern(length_bytes, seed + 500)])
        assert [client.wait(one).results for one in [*loads, deleted, other]] == [[True]] * 6
        assert all(one == content for one in memory)
        client.delete(["other"])
    client.store({"after": b"content"})
    # The reactors give the places of deleted chunks back when they come to it.
    until("the room", lambda: client.stat("allocated_bytes") == 4096)
