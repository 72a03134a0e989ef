"""submit_batch_prefix: how many leading keys are held."""

from collections.abc import Callable

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_key, pattern

KEYS = [make_key(number) for number in range(200)]


def prefix(client: Client, keys: list[str]) -> list[bool]:
    completion = client.wait(client.connector.submit_batch_prefix(keys))
    assert (completion.ok, completion.error) == (True, "")
    return completion.results


@pytest.mark.parametrize("missing", [0, 1, 63, 64, 65, 150, 199, 200])
def test_it_stops_at_the_first_miss(client: Client, missing: int) -> None:
    client.store({key: b"content" for position, key in enumerate(KEYS) if position != missing})
    before = [client.stat(name) for name in ("exists_hits", "exists_misses")]
    assert prefix(client, KEYS) == [True] * missing + [False] * (200 - missing)
    # Those behind it are not looked at.
    assert client.stat("exists_hits") - before[0] == missing
    assert client.stat("exists_misses") - before[1] == (1 if missing < 200 else 0)
    assert client.stat("leased_bytes") == missing * 4096


def test_what_it_found_is_leased(open_client: Callable[..., Client]) -> None:
    client = open_client(32 * MIB, lease_s=3600)
    content = pattern(MIB, 1)
    keys = KEYS[:8]
    client.store({key: content for key in keys if key != keys[4]})
    assert prefix(client, keys) == [True] * 4 + [False] * 4
    for number in range(64):
        client.store({make_key(number, "flood"): content})
    assert client.exists(keys) == [True] * 4 + [False] * 4


def test_no_keys_and_keys_that_do_not_fit(client: Client) -> None:
    assert prefix(client, []) == []
    assert prefix(client, ["", "x" * 4096]) == [False, False]
    with pytest.raises(kvring.SubmitError, match="key 1 has 4097 bytes"):
        client.connector.submit_batch_prefix(["key", "x" * 4097])
    client.connector.close()
    with pytest.raises(kvring.ClosedError):
        client.connector.submit_batch_prefix(["key"])
