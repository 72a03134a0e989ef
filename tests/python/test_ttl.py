"""Expiry: what was not used for `ttl` is a miss at once, and its space comes back."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.conftest import MIB, Client, age, make_key, pattern, set_last_use

DAY_S = 86_400.0
CONTENT = pattern(10_000, 1)
KEYS = [make_key(number) for number in range(100)]


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


def test_no_answer_knows_what_has_expired_before_it_is_pruned(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client()
    client.store(dict.fromkeys(KEYS, CONTENT))
    client, wait = age(client, store_directory, open_client, lease_s=0)
    assert client.exists(KEYS) == [True] * 100
    wait()
    # The background looks for it once a minute, with a ttl of days.
    assert client.stat("keys") == 100
    assert client.exists(KEYS) == [False] * 100
    prefix = client.wait(client.connector.submit_batch_prefix(KEYS))
    assert prefix.results == [False] * 100
    assert client.load(KEYS[0], len(CONTENT)) is None
    assert client.connector.pin(KEYS) == [False] * 100
    assert client.stat("leased_bytes") == client.stat("pinned_bytes") == 0
    assert client.connector.expire() == 100
    assert (client.stat("keys"), client.stat("allocated_bytes")) == (0, 0)
    assert client.stat("expired") == 100
    assert client.stat("expired_bytes") == 100 * len(CONTENT)
    assert client.connector.expire() == 0
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.connector.expire() == 0
    assert client.load(KEYS[0], len(CONTENT)) == CONTENT


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


def test_what_has_expired_is_held_again_once_it_is_stored_again(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client()
    client.store({"same": CONTENT, "other": CONTENT})
    client, wait = age(client, store_directory, open_client)
    wait()
    assert client.exists(["same", "other"]) == [False, False]
    client.store({"same": CONTENT, "other": CONTENT[1:]})
    assert client.load("same", len(CONTENT)) == CONTENT
    assert client.load("other", len(CONTENT) - 1) == CONTENT[1:]
    assert client.connector.expire() == 0


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


def test_only_what_is_old_expires_at_a_restart(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client()
    client.store(dict.fromkeys(KEYS[:50], CONTENT))
    client.connector.close()
    set_last_use(store_directory, 8 * DAY_S)
    client = open_client(ttl="off")
    client.store(dict.fromkeys(KEYS[50:], CONTENT))
    client.connector.close()
    client = open_client(ttl="7 days")
    assert (client.connector.recovery["kept"], client.connector.recovery["expired"]) == (50, 50)
    assert client.exists(KEYS) == [False] * 50 + [True] * 50


@pytest.mark.parametrize("seconds_ago", [20 * 365 * DAY_S, -365 * DAY_S])
def test_off_and_a_clock_that_was_set_back_expire_nothing(
    open_client: Callable[..., Client], store_directory: Path, seconds_ago: float
) -> None:
    ttl = "off" if seconds_ago > 0 else "1h"
    client = open_client(ttl=ttl)
    client.store(dict.fromkeys(KEYS, CONTENT))
    client.connector.close()
    set_last_use(store_directory, seconds_ago)
    client = open_client(ttl=ttl)
    assert client.exists(KEYS) == [True] * 100
    assert client.connector.expire() == 0
    client.connector.close()
    client = open_client(ttl=ttl)
    assert client.connector.recovery["expired"] == 0
    assert client.exists(KEYS) == [True] * 100


def test_space_of_what_has_expired_is_used_again(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client(32 * MIB)
    content = pattern(MIB, 1)
    client.store({make_key(number): content for number in range(24)})
    client, wait = age(client, store_directory, open_client, capacity=32 * MIB)
    wait()
    assert client.connector.expire() == 24
    client.store({make_key(number, "new"): content for number in range(24)})
    assert client.stat("evicted") == 0
