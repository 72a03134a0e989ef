"""Expiry: what was not used for `ttl` is a miss at once, and its space comes back."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.python.conftest import Client, make_key, pattern

DAY_S = 86_400.0
CONTENT = pattern(10_000, 1)
KEYS = [make_key(number) for number in range(100)]


def set_last_use(directory: Path, seconds_ago: float) -> None:
    """Write into each record of a closed store how long ago its chunk was used last."""
    last_use_ms = int((time.time() - seconds_ago) * 1000)
    with (directory / "index.kvring").open("r+b") as index:
        for offset in range(4096, index.seek(0, os.SEEK_END), 256):
            index.seek(offset)
            index.write(last_use_ms.to_bytes(6, "little"))


def test_a_miss_at_once_and_pruned_later(open_client: Callable[..., Client]) -> None:
    client = open_client(ttl=1, lease_s=0)
    was_seen = False
    key = make_key(0)
    attempts = 0
    while not was_seen and attempts < 5:
        attempts += 1
        client.store({key: CONTENT})
        client.wait_until(lambda: client.exists([key]) == [False])
        # Now and then it is pruned in the very moment in which it expires.
        was_seen = client.stat("keys") == 1
        assert client.load(key, len(CONTENT)) is None
        assert client.connector.pin([key]) == [False]
        client.wait_until(lambda: client.stat("keys") == 0)
    assert was_seen
    assert client.stat("allocated_bytes") == 0
    assert client.stat("expired") == attempts
    assert client.stat("expired_bytes") == attempts * len(CONTENT)
    # That is not eviction.
    assert (client.stat("evicted"), client.stat("would_hit_at_2x")) == (0, 0)


def test_a_use_begins_the_time_anew(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client(ttl="7d", lease_s=0)
    client.store(dict.fromkeys(["loaded", "stored again", "touched", "asked for"], CONTENT))
    client.connector.close()
    set_last_use(store_directory, 6.9 * DAY_S)
    client = open_client(ttl="7d", lease_s=0)
    assert client.load("loaded", len(CONTENT)) == CONTENT
    client.store({"stored again": CONTENT})
    assert client.stat("set_unchanged") == 1
    assert client.connector.touch(["touched", "none"]) == [True, False]
    # To be asked for is no use.
    assert client.exists(["asked for"]) == [True]
    client.connector.close()
    client = open_client(ttl="6d 12h")
    assert client.connector.recovery["expired"] == 1
    assert client.exists(["loaded", "stored again", "touched", "asked for"]) == [True] * 3 + [False]


def test_opening_throws_out_what_has_expired(open_client: Callable[..., Client]) -> None:
    client = open_client(ttl=1)
    client.store(dict.fromkeys(KEYS, CONTENT))
    client.connector.close()
    time.sleep(1.1)
    client = open_client(ttl=1)
    recovery = client.connector.recovery
    assert (recovery["kept"], recovery["expired"], recovery["clean_shutdown"]) == (0, 100, True)
    assert (client.stat("keys"), client.stat("allocated_bytes")) == (0, 0)
    assert client.stat("discarded_at_open") == 100
    # They are gone for good.
    client.connector.close()
    client = open_client(ttl="off")
    assert client.connector.recovery["expired"] == 0
    assert client.stat("keys") == 0
