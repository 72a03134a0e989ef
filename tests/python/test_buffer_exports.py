"""Memory is held from submit until its completion has been drained (line 4 of the contract)."""

import gc
import mmap
import os
import weakref

import pytest

from tests.python.conftest import MIB, Client, is_exported, make_key, make_memory, pattern

CHUNK_BYTES = 2 * MIB + 1


class Watched(bytearray):
    """Memory that a weak reference can watch."""


def submit(client: Client, operation: str, keys: list[str], memory: list[bytearray]) -> int:
    if operation == "set":
        return client.connector.submit_batch_set(keys, list(memory))
    return client.connector.submit_batch_get(keys, list(memory))


@pytest.mark.parametrize("operation", ["set", "get hit", "get miss", "set unchanged"])
def test_memory_is_held_until_its_completion_is_drained(client: Client, operation: str) -> None:
    content = pattern(CHUNK_BYTES, 1)
    if operation in ("get hit", "set unchanged"):
        client.store({"key": content})
    memory = bytearray(content)
    future_id = submit(client, operation.split()[0], ["key"], [memory])
    assert is_exported(memory)
    client.wait_readable()
    assert is_exported(memory), "the completion waits, but nobody has taken it"
    assert client.collect() == [future_id]
    assert not is_exported(memory)


def test_draining_releases_the_memory_of_the_drained_batches_only(client: Client) -> None:
    first, second = bytearray(pattern(4096, 1)), bytearray(pattern(4096, 2))
    client.wait(submit(client, "set", ["first"], [first]))
    submit(client, "set", ["second"], [second])
    assert (is_exported(first), is_exported(second)) == (False, True)


@pytest.mark.parametrize("operation", ["set", "get"])
def test_memory_lives_on_without_references_until_it_is_drained(
    client: Client, operation: str
) -> None:
    watched = Watched(pattern(CHUNK_BYTES, 1))
    reference = weakref.ref(watched)
    future_id = submit(client, operation, ["key"], [watched])
    del watched
    gc.collect()
    assert reference() is not None
    client.wait(future_id)
    gc.collect()
    assert reference() is None


def test_a_set_whose_memory_was_dropped_at_once_stores_it(client: Client) -> None:
    contents = {make_key(seed): pattern(CHUNK_BYTES, seed) for seed in range(20)}
    future_ids = []
    for key, content in contents.items():
        # Without the export this memory would be unmapped right here.
        memory = make_memory(CHUNK_BYTES)
        memory[:] = content
        future_ids.append(client.connector.submit_batch_set([key], [memory]))
        del memory
    gc.collect()
    assert all(completion.ok for completion in client.wait_all(future_ids))
    assert {key: client.load(key, CHUNK_BYTES) for key in contents} == contents


def test_a_get_whose_memory_was_dropped_at_once_still_arrives(client: Client) -> None:
    content = pattern(CHUNK_BYTES, 1)
    client.store({"key": content})
    # Two mappings of the same memory: one is dropped, the other shows what arrives.
    descriptor = os.memfd_create("chunk")
    os.ftruncate(descriptor, CHUNK_BYTES)
    window = mmap.mmap(descriptor, CHUNK_BYTES)
    dropped = mmap.mmap(descriptor, CHUNK_BYTES)
    os.close(descriptor)
    future_id = client.connector.submit_batch_get(["key"], [dropped])
    del dropped
    gc.collect()
    assert client.wait(future_id).results == [True]
    assert window[:] == content


def test_the_list_and_the_keys_may_be_changed_right_after_submit(client: Client) -> None:
    contents = {make_key(seed): pattern(MIB, seed) for seed in range(10)}
    keys, buffers = list(contents), [memoryview(content) for content in contents.values()]
    future_id = client.connector.submit_batch_set(keys, list(buffers))
    keys.clear()
    buffers.clear()
    assert client.wait(future_id).results == [True] * 10
    assert {key: client.load(key, MIB) for key in contents} == contents


def test_an_object_given_twice_is_released_once_for_each(client: Client) -> None:
    memory = bytearray(pattern(4096, 1))
    future_id = submit(client, "set", ["first", "second"], [memory, memory])
    assert is_exported(memory)
    client.wait(future_id)
    assert not is_exported(memory)
