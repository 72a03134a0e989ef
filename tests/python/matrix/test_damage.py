"""Damage costs hits and nothing else, on every cell of the matrix."""

import os
from pathlib import Path

import pytest

from tests.python.conftest import KIB, Client, make_key, pattern
from tests.python.matrix.conftest import Store

CHUNKS = {make_key(number): pattern(1 + number * 3_301, number) for number in range(60)}
KEYS = list(CHUNKS)
RECORDS_OFFSET = 4096
RECORD_BYTES = 256
STATE_OFFSET = 12
DIGEST_OFFSET = 16


def make_store(store: Store) -> None:
    client = store.open()
    client.store(CHUNKS)
    client.connector.close()


def read(file: Path, offset: int, length_bytes: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length_bytes)


def write(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def flip(file: Path, offset: int) -> None:
    write(file, offset, bytes([read(file, offset, 1)[0] ^ 0x10]))


def used_records(store: Store) -> list[int]:
    """Tell where in the file, or device, the records in use are, which have one key each."""
    file, start = store.index()
    first = start + RECORDS_OFFSET
    records = read(file, first, 64 * KIB)
    return [
        first + at for at in range(0, len(records), RECORD_BYTES) if records[at + STATE_OFFSET] == 1
    ]


def assert_lost_only(client: Client, lost: set[str]) -> None:
    """Load everything; the others are right, and what is lost can be stored again."""
    for key, content in CHUNKS.items():
        assert client.load(key, len(content)) == (None if key in lost else content)
    assert client.exists(KEYS) == [key not in lost for key in KEYS]
    client.store({key: CHUNKS[key] for key in lost})
    assert {key: client.load(key, len(chunk)) for key, chunk in CHUNKS.items()} == CHUNKS


def lost_keys(client: Client) -> set[str]:
    hits = client.exists(KEYS)
    return {key for key, hit in zip(KEYS, hits, strict=True) if not hit}


def flip_chunks(store: Store, keys: list[str]) -> None:
    """Flip a bit in each: in its first byte, its last one, in between."""
    places = store.places()
    for number, key in enumerate(keys):
        file, offset = places[key]
        flip(file, offset + number % 3 * (len(CHUNKS[key]) - 1) // 2)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_damaged_chunks_are_missed(store: Store, is_open: bool) -> None:
    make_store(store)
    damaged = KEYS[::2]
    if not is_open:
        flip_chunks(store, damaged)
    client = store.open()
    if is_open:
        flip_chunks(store, damaged)
    assert client.connector.recovery["kept"] == len(KEYS)
    assert_lost_only(client, set(damaged))
    assert client.stat("checksum_mismatch") == len(damaged)


def test_damaged_records_cost_their_chunks(store: Store) -> None:
    make_store(store)
    file, _ = store.index()
    damaged = used_records(store)[::3]
    for number, record in enumerate(damaged):
        flip(file, record + DIGEST_OFFSET + number)
    client = store.open()
    recovery = client.connector.recovery
    assert (recovery["torn"], recovery["kept"]) == (len(damaged), len(KEYS) - len(damaged))
    lost = lost_keys(client)
    assert len(lost) == len(damaged)
    assert_lost_only(client, lost)
    client.connector.close()
    assert_lost_only(store.open(), set())
