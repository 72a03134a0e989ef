"""Memory of any length, at any address and of any shape (lines 1 to 3 of the contract)."""

import array
import ctypes
import itertools

import pytest
from typing_extensions import Buffer

from tests.python.conftest import (
    BLOCK_BYTES,
    KIB,
    MIB,
    Client,
    filled_memory,
    make_key,
    make_memory,
    pattern,
)

# 522240 bytes: a 255-token bf16 chunk, a multiple of 512 but not of 4096.
LENGTHS_BYTES = (1, 2, 511, 512, 513, 4095, 4096, 4097, 522_240, MIB, 2 * MIB + 1, 5 * MIB - 3)
SHIFTS_BYTES = (0, 1, 7, 512, 2048, 4095)


@pytest.mark.parametrize("set_shift_bytes", SHIFTS_BYTES)
def test_any_length_is_stored_and_loaded_at_any_address(
    client: Client, set_shift_bytes: int
) -> None:
    contents = [pattern(length_bytes, length_bytes) for length_bytes in LENGTHS_BYTES]
    keys = [make_key(number) for number in range(len(contents))]
    stored = [filled_memory(content, set_shift_bytes) for content in contents]
    assert client.set(keys, stored)[1:] == (True, "", [True] * len(keys))
    for get_shift_bytes in SHIFTS_BYTES:
        loaded = [make_memory(length_bytes, get_shift_bytes) for length_bytes in LENGTHS_BYTES]
        assert client.get(keys, loaded)[1:] == (True, "", [True] * len(keys))
        assert [bytes(memory) for memory in loaded] == contents


def test_lengths_and_addresses_are_mixed_in_one_batch(client: Client) -> None:
    places = list(itertools.product(LENGTHS_BYTES[:9], SHIFTS_BYTES))
    contents = [pattern(length_bytes, seed) for seed, (length_bytes, _) in enumerate(places)]
    keys = [make_key(number) for number in range(len(places))]
    stored = [
        filled_memory(content, shift_bytes)
        for content, (_, shift_bytes) in zip(contents, places, strict=True)
    ]
    assert client.set(keys, stored).ok
    loaded = [
        make_memory(length_bytes, (shift_bytes + 1) % BLOCK_BYTES)
        for length_bytes, shift_bytes in places
    ]
    assert client.get(keys, loaded)[1:] == (True, "", [True] * len(keys))
    assert [bytes(memory) for memory in loaded] == contents


@pytest.mark.parametrize("shift_bytes", [0, 1, 512])
@pytest.mark.parametrize("length_bytes", [1, 4095, 4097, 522_240])
def test_nothing_around_the_memory_of_a_get_is_written(
    client: Client, length_bytes: int, shift_bytes: int
) -> None:
    content = pattern(length_bytes, 1)
    client.store({"key": content})
    guard = b"\xa5" * BLOCK_BYTES
    whole = filled_memory(guard + bytes(length_bytes) + guard, shift_bytes)
    end_bytes = BLOCK_BYTES + length_bytes
    assert client.get(["key"], [whole[BLOCK_BYTES:end_bytes]]).results == [True]
    assert bytes(whole) == guard + content + guard


def test_aligned_whole_blocks_are_not_copied(client: Client) -> None:
    contents = {make_key(seed): pattern(3 * MIB, seed) for seed in range(4)}
    memory = [filled_memory(content) for content in contents.values()]
    assert client.set(list(contents), memory).ok
    assert client.get(list(contents), [make_memory(3 * MIB) for _ in contents]).ok
    assert client.stat("get_hits") == 4
    assert client.stat("bounced_bytes") == 0


@pytest.mark.parametrize("length_bytes", [522_240, 2 * MIB + 1, 3 * MIB - 1])
def test_of_an_odd_length_at_most_one_block_is_copied(client: Client, length_bytes: int) -> None:
    keys = [make_key(number) for number in range(4)]
    assert client.set(keys, [filled_memory(pattern(length_bytes, 1)) for _ in keys]).ok
    assert 0 < client.stat("bounced_bytes") <= 4 * BLOCK_BYTES
    assert client.get(keys, [make_memory(length_bytes) for _ in keys]).results == [True] * 4
    assert client.stat("bounced_bytes") <= 8 * BLOCK_BYTES


def test_memory_at_an_odd_address_is_copied_and_counted(client: Client) -> None:
    assert client.set(["key"], [filled_memory(pattern(MIB, 1), 1)]).ok
    assert client.stat("bounced_bytes") == MIB


def test_one_memory_can_serve_several_keys_of_a_set(client: Client) -> None:
    content = pattern(64 * KIB + 1, 1)
    keys = [make_key(number) for number in range(20)]
    assert client.set(keys, [filled_memory(content)] * 20).ok
    assert all(client.load(key, len(content)) == content for key in keys)


READABLE: dict[str, Buffer] = {
    "bytes": pattern(48, 1),
    "bytearray": bytearray(pattern(48, 1)),
    "memoryview": memoryview(pattern(48, 1)),
    "read-only memoryview": memoryview(bytearray(pattern(48, 1))).toreadonly(),
    "slice": memoryview(b"before" + pattern(48, 1) + b"after")[6:54],
    "array of doubles": array.array("d", pattern(48, 1)),
    "two dimensions": memoryview(pattern(48, 1)).cast("B", (6, 8)),
    "three dimensions": memoryview(pattern(48, 1)).cast("B", (2, 6, 4)),
    "dimensions of doubles": memoryview(pattern(48, 1)).cast("d", (3, 2)),
    "dimension of one": memoryview(pattern(48, 1)).cast("B", (48, 1)),
    "ctypes array": (ctypes.c_char * 48).from_buffer_copy(pattern(48, 1)),
}


@pytest.mark.parametrize("buffer", READABLE.values(), ids=READABLE.keys())
def test_any_contiguous_buffer_is_stored(client: Client, buffer: Buffer) -> None:
    assert client.set(["key"], [buffer]).ok
    assert client.load("key", 48) == pattern(48, 1)


WRITABLE: dict[str, Buffer] = {
    "bytearray": bytearray(48),
    "memoryview": memoryview(bytearray(48)),
    "array of doubles": array.array("d", bytes(48)),
    "three dimensions": memoryview(bytearray(48)).cast("B", (2, 6, 4)),
    "dimensions of doubles": memoryview(bytearray(48)).cast("d", (3, 2)),
    "ctypes array": (ctypes.c_char * 48)(),
}


@pytest.mark.parametrize("buffer", WRITABLE.values(), ids=WRITABLE.keys())
def test_any_contiguous_buffer_is_filled(client: Client, buffer: Buffer) -> None:
    client.store({"key": pattern(48, 2)})
    assert client.get(["key"], [buffer]).results == [True]
    assert bytes(memoryview(buffer).cast("B")) == pattern(48, 2)


def test_a_buffer_without_dimensions_is_contiguous_too(client: Client) -> None:
    number = ctypes.c_uint64(0x0123_4567_89AB_CDEF)
    assert memoryview(number).ndim == 0
    assert memoryview(number).contiguous
    assert client.set(["key"], [number]).ok
    assert client.load("key", 8) == bytes(number)
