"""Memory of any length, at any address and of any shape (lines 1 to 3 of the contract)."""

import array
import ctypes
from pathlib import Path

import pytest
from typing_extensions import Buffer

import kvring
from tests.python.conftest import Client, pattern

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


def test_memory_of_references_is_refused(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed (make lmcache)")
    objects = numpy.array([object()])
    with kvring.open(tmp_path / "store", "64MiB") as store:
        for memory in (
            objects,
            memoryview(objects),
            numpy.zeros(2, [("number", "i4"), ("any", "O")]),
        ):
            with pytest.raises(kvring.SubmitError, match=r"^'key': its memory has references"):
                store.put("key", memory)
        assert not store.exists("key")
