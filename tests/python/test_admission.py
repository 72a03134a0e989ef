"""Admission: which SETs are worth a write. Those that are not complete all the same."""

from collections.abc import Callable

import pytest

from tests.python.conftest import MIB, Client, make_key, pattern
from tests.support.tuning import tuned

CONTENT = pattern(10_000, 1)
OTHER_CONTENT = pattern(10_000, 2)
KEYS = [make_key(number) for number in range(10)]


@pytest.mark.parametrize("admit_after", [2, 3, 5])
def test_a_key_is_stored_at_the_nth_time(
    open_client: Callable[..., Client], admit_after: int
) -> None:
    with tuned(admit_after=admit_after):
        client = open_client(admit="second_use")
    for _ in range(admit_after - 1):
        assert client.exists(KEYS) == [False] * 10
        client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.exists(KEYS) == [False] * 10
    assert client.stat("set_not_admitted") == 10 * (admit_after - 1)
    assert (client.stat("set_stored"), client.stat("written_bytes")) == (0, 0)
    assert client.connector.usage()["test/model"]["remembered_keys"] == 10
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.exists(KEYS) == [True] * 10
    assert client.load(KEYS[0], len(CONTENT)) == CONTENT
    assert client.stat("set_stored") == 10
    assert client.stat("set_failed") == 0
    assert client.connector.usage()["test/model"]["remembered_keys"] == 0


def test_other_bytes_for_a_key_that_is_held_leave_no_stale_ones(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(admit="second_use")
    for _ in range(2):
        client.store(dict.fromkeys(KEYS, CONTENT))
    # The same bytes are held: that is no write.
    client.store(dict.fromkeys(KEYS, CONTENT))
    assert client.stat("set_unchanged") == 10
    client.connector.pin(KEYS[:1])
    client.store(dict.fromkeys(KEYS[:5], OTHER_CONTENT))
    assert client.exists(KEYS) == [False] * 5 + [True] * 5
    assert client.load(KEYS[0], len(CONTENT)) is None
    client.store(dict.fromkeys(KEYS[:5], OTHER_CONTENT))
    assert client.load(KEYS[0], len(CONTENT)) == OTHER_CONTENT
    client.connector.close()
    client = open_client(admit="second_use")
    assert [client.load(key, len(CONTENT)) for key in KEYS] == [OTHER_CONTENT] * 5 + [CONTENT] * 5


def test_what_went_for_want_of_room_is_stored_at_once(open_client: Callable[..., Client]) -> None:
    client = open_client(32 * MIB, admit="second_use", lease_s=0)
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(40)]
    for key in keys:
        client.store({key: content})
        client.store({key: content})
    held = client.exists(keys)
    gone = [key for key, one in zip(keys, held, strict=True) if not one]
    assert 8 <= len(gone) <= 16
    client.store({gone[-1]: content})
    assert client.exists(gone[-1:]) == [True]


def test_past_the_write_budget_nothing_is_written(open_client: Callable[..., Client]) -> None:
    client = open_client(32 * MIB, write_budget="1GiB")
    content = pattern(MIB, 1)
    keys = [make_key(number) for number in range(60)]
    for key in keys:
        client.store({key: content})
    # 42 MiB in an hour; a little comes back while this runs.
    stored = client.stat("set_stored")
    assert 42 <= stored < 60
    assert client.stat("set_over_write_budget") == 60 - stored
    assert client.stat("written_bytes") == stored * MIB
    assert client.stat("set_failed") == 0
    assert client.exists(keys[-1:]) == [False]
    # What is held costs nothing to store again.
    held = keys[stored - 1]
    assert client.exists([held]) == [True]
    client.store({held: content})
    assert client.stat("set_unchanged") == 1


def test_past_the_write_budget_no_stale_bytes_are_left(open_client: Callable[..., Client]) -> None:
    client = open_client(32 * MIB, write_budget="1GiB")
    content = pattern(MIB, 1)
    client.store(dict.fromkeys(KEYS, CONTENT))
    for number in range(60):
        client.store({make_key(number, "spends"): content})
    assert client.stat("set_over_write_budget") > 0
    client.store({KEYS[0]: CONTENT[:100]})
    held = make_key(41, "spends")
    assert client.exists([held]) == [True]
    refused = client.stat("set_over_write_budget")
    client.store({held: content[::-1]})
    assert client.stat("set_over_write_budget") == refused + 1
    assert client.exists([held]) == [False]
    assert client.load(held, MIB) is None
