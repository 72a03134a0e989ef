"""A wrong argument raises at submit, before anything is queued (line 11 of the contract)."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import kvring
from tests.python.conftest import ENGINE, LAYOUT, SMALL_CAPACITY_BYTES, Client, is_exported, pattern
from tests.support.tuning import tuned

STRIDED = memoryview(bytearray(8192))[::2]
REVERSED = memoryview(bytearray(4096))[::-1]
RELEASED = memoryview(bytearray(4096))
RELEASED.release()

# What is wrong with the second key or buffer of a batch -> it, what is raised, what that says.
WRONG_KEYS: dict[str, tuple[Any, type[Exception], str]] = {
    "too long in two-byte characters": ("é" * 2049, kvring.SubmitError, "key 1 has 4098 bytes"),
    "too long in four-byte characters": ("😀" * 1025, kvring.SubmitError, "key 1 has 4100 bytes"),
    "a lone surrogate": (
        "key \ud800",
        kvring.SubmitError,
        "key 1 has a lone surrogate, which UTF-8 cannot hold; write it in another way",
    ),
    "bytes": (b"key", kvring.SubmitError, "key 1 is of type bytes; pass a str"),
    "an int": (1, kvring.SubmitError, "key 1 is of type int; pass a str"),
    "None": (None, kvring.SubmitError, "key 1 is of type NoneType; pass a str"),
}
NO_MEMORY = "which has no memory to share; pass a memoryview"
WRONG_BUFFERS: dict[str, tuple[Any, type[Exception], str]] = {
    "every second byte": (
        STRIDED,
        kvring.SubmitError,
        "buffer 1 is not contiguous; pass one contiguous span of memory per key",
    ),
    "backwards": (REVERSED, kvring.SubmitError, "buffer 1 is not contiguous; pass one"),
    "released": (RELEASED, kvring.SubmitError, "buffer 1 cannot be used (ValueError: "),
    "no buffer": (object(), kvring.SubmitError, f"buffer 1 is of type object, {NO_MEMORY}"),
    "a str": ("content", kvring.SubmitError, f"buffer 1 is of type str, {NO_MEMORY}"),
    "an int": (5, kvring.SubmitError, f"buffer 1 is of type int, {NO_MEMORY}"),
    "None": (None, kvring.SubmitError, f"buffer 1 is of type NoneType, {NO_MEMORY}"),
}
WRONG_FOR_SET: dict[str, tuple[Any, type[Exception], str]] = {
    "of length zero": (b"", kvring.SubmitError, "buffer 1 has 0 bytes; a chunk has 1 byte"),
}
WRONG_FOR_GET: dict[str, tuple[Any, type[Exception], str]] = {
    "bytes": (
        bytes(4096),
        kvring.SubmitError,
        "buffer 1 is read-only; what is loaded into it needs writable memory, such as a bytearray",
    ),
    "a read-only view": (
        memoryview(bytearray(4096)).toreadonly(),
        kvring.SubmitError,
        "buffer 1 is read-only",
    ),
}


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a small store that all tests of a module use, one after the other."""
    directory = tmp_path_factory.mktemp("shared") / "store"
    # A flush of what tests before have stored would count in `syncs`.
    with (
        tuned(flush_period_ms=3_600_000),
        kvring.Connector(
            directory, SMALL_CAPACITY_BYTES, engine=ENGINE, layout=LAYOUT
        ) as connector,
    ):
        yield Client(connector)
    shutil.rmtree(directory)


@pytest.fixture
def client(shared_client: Client) -> Client:
    """The same for all: a refusal must leave no trace."""
    shared_client.delete(["key", "held", "after", "longest", *map(str, range(20))])
    assert shared_client.stat("keys") == 0
    return shared_client


Case = tuple[str, tuple[Any, ...], type[Exception], str]

NOT_A_LIST = "memoryviews is of type {}; pass a list with one buffer for each key"

# What is the matter with the arguments as a whole.
WRONG_ARGUMENTS: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((), TypeError, ""),
    ((["good"],), TypeError, ""),
    ((["good"], [bytearray(8)], []), TypeError, ""),
    ((["good"], None), kvring.SubmitError, NOT_A_LIST.format("NoneType")),
    ((["good"], bytearray(8)), kvring.SubmitError, NOT_A_LIST.format("bytearray")),
    ((["good"], memoryview(b"memory")), kvring.SubmitError, NOT_A_LIST.format("memoryview")),
    ((["good"], "text"), kvring.SubmitError, "buffer 0 is of type str, which has no memory"),
    (("good", [bytearray(8)] * 4), kvring.SubmitError, "keys is one str; pass a list of str"),
    ((None, [bytearray(8)]), kvring.SubmitError, "keys is of type NoneType; pass a list of"),
    ((7, [bytearray(8)]), kvring.SubmitError, "keys is of type int; pass a list of str"),
    (([], [bytearray(8)]), kvring.SubmitError, "0 keys but 1 buffers"),
    ((["good"] * 300, [bytearray(8)] * 3), kvring.SubmitError, "300 keys but 3 buffers"),
]
WRONG_KEYS_ALONE: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((), TypeError, ""),
    ((["good"], ["good"]), TypeError, ""),
    (("good",), kvring.SubmitError, "keys is one str; pass a list of str"),
    ((None,), kvring.SubmitError, "keys is of type NoneType; pass a list of str"),
]


def cases() -> Iterator[Case]:
    """Yield an operation, its arguments, what is raised, and what that says."""
    memory = bytearray(4096)
    for operation, wrong in (("set", WRONG_FOR_SET), ("get", WRONG_FOR_GET)):
        for key, kind, text in WRONG_KEYS.values():
            yield operation, (["good", key, "last"], [memory] * 3), kind, text
        for buffer, kind, text in [*WRONG_BUFFERS.values(), *wrong.values()]:
            yield operation, (["good", "wrong", "last"], [memory, buffer, memory]), kind, text
        for arguments, kind, text in WRONG_ARGUMENTS:
            yield operation, arguments, kind, text
    for operation in ("exists", "delete", "prefix"):
        for key, kind, text in WRONG_KEYS.values():
            yield operation, (["good", key, "last"],), kind, text
        for arguments, kind, text in WRONG_KEYS_ALONE:
            yield operation, arguments, kind, text


def assert_refused(
    client: Client, kind: type[Exception], text: str, operation: str, *arguments: Any
) -> None:
    """Submit, expect the error, and find nothing queued and a connector that works."""
    before = settled_stats(client)
    with pytest.raises(kind) as refusal:
        getattr(client.connector, f"submit_batch_{operation}")(*arguments)
    assert type(refusal.value) is kind
    assert text in str(refusal.value)
    assert settled_stats(client) == before
    assert client.connector.drain_completions() == []
    assert not client.is_readable()
    client.store({"after": pattern(4097, 1)})
    assert client.load("after", 4097) == pattern(4097, 1)
    assert client.exists(["good", "last"]) == [False, False]


def settled_stats(client: Client) -> dict[str, Any]:
    """Return stats() but what goes on behind answers: freeing what tests before have deleted."""
    stats = client.connector.stats()
    return {
        name: value
        for name, value in stats.items()
        if not name.startswith(("delete_wait_", "delete_device_", "delete_total_"))
        # What is told of the one path is told of all as well.
        and name not in ("reactor_turns", "allocated_bytes", "paths")
    }


@pytest.mark.parametrize("operation", ["set", "get", "exists", "delete", "prefix"])
def test_wrong_arguments(client: Client, operation: str) -> None:
    client.store({"held": pattern(4096, 1)})
    own = [case for case in cases() if case[0] == operation]
    assert len(own) > 5
    for _, arguments, kind, text in own:
        assert_refused(client, kind, text, operation, *arguments)
        memory = [one for one in (arguments[1:] or [[]])[0] or [] if type(one) is bytearray]
        assert not any(is_exported(one) for one in memory)
        assert all(one == bytes(len(one)) for one in memory)
    assert client.exists(["held"]) == [True]


def test_wrong_keys_of_pins(client: Client) -> None:
    for method in (client.connector.pin, client.connector.unpin):
        for keys, text in [("good", "keys is one str"), (["good", 1], "key 1 is of type int")]:
            with pytest.raises(kvring.SubmitError, match=text):
                method(keys)  # type: ignore[arg-type]


def test_keys_and_buffers_may_be_tuples(client: Client) -> None:
    keys: Any = ("held", "last")
    content = pattern(4096, 1)
    future_id = client.connector.submit_batch_set(keys[:1], (content,))
    assert client.wait(future_id).ok
    assert client.exists(keys) == [True, False]
    assert client.load("held", 4096) == content
    client.delete(["held"])


def test_the_longest_chunk_is_one_that_fits(client: Client) -> None:
    limit_bytes = client.stat("max_chunk_bytes")
    view = memoryview(bytearray(limit_bytes + 1))
    assert client.set(["long"], [view]).results == [False]
    view[:limit_bytes] = pattern(limit_bytes, 1)
    assert client.set(["longest"], [view[:limit_bytes]]).ok
    assert client.load("longest", limit_bytes) == bytes(view[:limit_bytes])


def test_a_get_longer_than_any_chunk_is_a_miss(client: Client) -> None:
    memory = bytearray(client.stat("max_chunk_bytes") + 1)
    assert client.get(["key"], [memory])[1:] == (True, "", [False])


def test_a_get_of_length_zero_is_a_miss(client: Client) -> None:
    client.store({"key": pattern(4096, 1)})
    assert client.get(["key"], [bytearray()])[1:] == (True, "", [False])


def test_refusals_leave_what_is_under_way_alone(client: Client) -> None:
    content = pattern(1 << 20, 1)
    future_ids = []
    for number in range(20):
        future_ids.append(client.connector.submit_batch_set([str(number)], [content]))
        with pytest.raises(kvring.SubmitError):
            client.connector.submit_batch_set(["0", "k" * 4097], [content, content])
    assert all(completion.ok for completion in client.wait_all(future_ids))
    assert client.connector.drain_completions() == []


@pytest.mark.parametrize(
    ("variants", "text"),
    [
        ([1, 2], "2 variants with 1 chunks; each chunk has one"),
        ([-1], "variant -1 is not valid; it takes 0 to 4294967295"),
        ([1 << 32], "variant 4294967296 is not valid; it takes 0 to 4294967295"),
    ],
)
def test_wrong_variants(client: Client, variants: list[int], text: str) -> None:
    before = settled_stats(client)
    with pytest.raises(kvring.SubmitError, match=text):
        client.connector.submit_batch_set(["good"], [b"x"], variants=variants)
    assert settled_stats(client) == before
