"""Chunks of 64 MiB and more: 256 tokens of a large model."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.conftest import MIB, Client, make_key, make_memory, pattern

GIB = 1 << 30


def digest(key: str) -> str:
    """Return the digest of a key as messages show it."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def test_a_chunk_that_is_too_long_fails_alone(
    open_client: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring")
    client = open_client("1GiB")
    limit_bytes = client.stat("max_chunk_bytes")
    assert 126 * MIB <= limit_bytes <= 128 * MIB
    (said,) = caplog.messages
    assert f"chunks up to {limit_bytes / MIB:.1f} MiB" in said
    short = [pattern(5000, number) for number in range(2)]
    long = make_memory(limit_bytes + 1)
    for number in range(2):
        keys = [make_key(10 * number + place) for place in range(3)]
        completion = client.set(keys, [short[0], long, short[1]])
        assert (completion.ok, completion.results) == (False, [True, False, True])
        for part in (digest(keys[1]), str(limit_bytes + 1), str(limit_bytes), "raise capacity"):
            assert part in completion.error
        assert [client.load(key, 5000) for key in (keys[0], keys[2])] == short
        assert client.exists(keys) == [True, False, True]
    assert (client.stat("set_too_long"), client.stat("set_failed")) == (2, 2)
    assert (client.stat("set_no_space"), client.stat("set_queued_bytes")) == (0, 0)
    warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1, "not chunk by chunk"
    assert digest(make_key(1)) in warnings[0].getMessage()


@pytest.mark.slow
def test_two_gibibytes_are_one_chunk(open_client: Callable[..., Client]) -> None:
    """The longest chunk of all, past what 31 bits count, at an address of its own."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available_bytes = int(meminfo["MemAvailable"].split()[0]) << 10
    if available_bytes < 6 * GIB:
        pytest.skip(f"needs 6 GiB of memory, {available_bytes} bytes are available")
    client = open_client("16GiB", min_free=0)
    length_bytes = client.stat("max_chunk_bytes")
    assert length_bytes == 2 * GIB
    memory = make_memory(length_bytes, 1)
    part = pattern(16 * MIB + 1, 1)
    for start in range(0, length_bytes, len(part)):
        memory[start : start + len(part)] = part[: length_bytes - start]
    expected = hashlib.blake2b(memory).digest()
    assert client.set(["key"], [memory]).results == [True]
    for start in range(0, length_bytes, MIB):
        memory[start] ^= 0xFF
    assert client.get(["key"], [memory]).results == [True]
    assert hashlib.blake2b(memory).digest() == expected
    assert client.set(["key"], [memory]).results == [True]
    assert (client.stat("set_stored"), client.stat("set_unchanged")) == (1, 1)
    assert client.stat("stored_bytes") == length_bytes
