"""Namespaces: what each takes, its keys, its quota, and its end."""

from collections import Counter
from collections.abc import Callable

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_key, pattern

PLAIN = "test/model"
SALTED = "test/model@tenant"
OTHER = "another/model"
NAMELESS = ""
CONTENT = pattern(10_000, 1)


def key_of(namespace: str, number: int) -> str:
    """Return a key of a namespace, in the form that LMCache gives it."""
    if namespace == NAMELESS:
        return f"key {number}"
    model, _, salt = namespace.partition("@")
    return make_key(number, salt).replace("test/model", model)


def keys_of(namespace: str, count: int) -> list[str]:
    return [key_of(namespace, number) for number in range(count)]


def list_all(client: Client, namespace: str, limit: int) -> list[tuple[str, str]]:
    """Go through all pages."""
    found: list[tuple[str, str]] = []
    cursor: int | None = 0
    while cursor is not None:
        page, following = client.connector.keys(namespace, cursor, limit)
        assert following is None or (len(page) >= limit and following > cursor)
        found += page
        cursor = following
    return found


@pytest.fixture
def client(open_client: Callable[..., Client]) -> Client:
    """A store with chunks in four namespaces, as many as their names are long."""
    client = open_client()
    for namespace in (PLAIN, SALTED, OTHER, NAMELESS):
        client.store(dict.fromkeys(keys_of(namespace, 10 + len(namespace)), CONTENT))
    return client


def test_usage_tells_what_each_takes(client: Client) -> None:
    usage = client.connector.usage()
    assert list(usage) == sorted([PLAIN, SALTED, OTHER, NAMELESS])
    for namespace, one in usage.items():
        assert one == {
            "keys": 10 + len(namespace),
            "allocated_bytes": (10 + len(namespace)) * 12_288,
            "writing_keys": 0,
            "remembered_keys": 0,
            "quota_bytes": None,
        }
    assert sum(one["allocated_bytes"] or 0 for one in usage.values()) == client.stat(
        "allocated_bytes"
    )


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_keys_come_page_by_page(client: Client, limit: int) -> None:
    for namespace in (PLAIN, SALTED, OTHER, NAMELESS):
        expected = [(key, "stored") for key in keys_of(namespace, 10 + len(namespace))]
        found = list_all(client, namespace, limit)
        assert Counter(found) == Counter(expected)
    assert client.connector.keys("unknown") == ([], None)
    assert client.connector.keys(PLAIN, 1 << 40) == ([], None)
    with pytest.raises(OverflowError):
        client.connector.keys(PLAIN, -1)


@pytest.mark.parametrize("namespace", [PLAIN, SALTED, OTHER, NAMELESS])
def test_purge_takes_one_namespace_and_no_other(
    client: Client, open_client: Callable[..., Client], namespace: str
) -> None:
    count = 10 + len(namespace)
    before = client.connector.usage()
    purged = client.connector.purge(namespace)
    assert purged == {"keys": count, "bytes": count * len(CONTENT), "pinned": []}
    del before[namespace]
    assert client.connector.usage() == before
    assert client.exists(keys_of(namespace, count)) == [False] * count
    assert client.load(key_of(namespace, 0), len(CONTENT)) is None
    assert client.connector.keys(namespace) == ([], None)
    assert client.stat("purged") == count
    # The space is free when it returns, and the index knows nothing of it either.
    assert client.stat("allocated_bytes") == sum(
        one["allocated_bytes"] or 0 for one in before.values()
    )
    assert client.stat("records") == client.stat("keys")
    assert client.connector.purge(namespace) == {"keys": 0, "bytes": 0, "pinned": []}
    client.connector.close()
    client = open_client()
    assert client.connector.usage() == before
    client.store(dict.fromkeys(keys_of(namespace, count), CONTENT))


def test_a_chunk_that_is_longer_than_its_quota_is_refused_with_reasons(
    open_client: Callable[..., Client],
) -> None:
    client = open_client(64 * MIB, quotas={SALTED: "1MiB"})
    client.store({key_of(SALTED, 0): CONTENT})
    completion = client.set([key_of(SALTED, 1), key_of(PLAIN, 1)], [pattern(2 * MIB, 1)] * 2)
    assert (completion.ok, completion.results) == (False, [False, True])
    # The error is logged by engines, and a salt is not for logs.
    model, salt = SALTED.split("@")
    for word in ("2097152", f"'{model}@...'", "1048576", "raise the quota"):
        assert word in completion.error
    assert salt not in completion.error.replace(model, "")
    # Nothing went in vain.
    assert client.exists([key_of(SALTED, 0)]) == [True]
    assert client.stat("evicted") == 0


def test_a_closed_store_tells_nothing(client: Client) -> None:
    client.connector.close()
    for call in (
        client.connector.usage,
        client.connector.expire,
        client.connector.check,
        lambda: client.connector.keys(PLAIN),
        lambda: client.connector.purge(PLAIN),
    ):
        with pytest.raises(kvring.ClosedError):
            call()
