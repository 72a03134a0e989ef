"""The code that a batch has which failed."""

from collections.abc import Callable

from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    is_readable,
    make_key,
    pattern,
)
from tests.support.tuning import tuned

CHUNK = pattern(MIB, 1)
NAMESPACE = "test/model"


def codes_of(client: Client, future_id: int) -> tuple[str | None, list[bool]]:
    """Wait for one batch, and return its code and its answers."""
    assert is_readable(client.connector.event_fd(), HANG_DEADLINE_S)
    ((found_id, code, error, results),) = client.connector.drain_coded_completions()
    assert found_id == future_id
    assert bool(error) == (code is not None)
    return code, results


def stored(client: Client, keys: list[str], chunks: list[bytes]) -> tuple[str | None, list[bool]]:
    return codes_of(client, client.connector.submit_batch_set(keys, chunks))


def test_what_succeeds_or_misses_has_none(client: Client) -> None:
    keys = [make_key(1), make_key(2)]
    assert stored(client, keys[:1], [CHUNK]) == (None, [True])
    memory = [bytearray(MIB), bytearray(MIB)]
    assert codes_of(client, client.connector.submit_batch_get(keys, memory)) == (
        None,
        [True, False],
    )
    assert codes_of(client, client.connector.submit_batch_delete(keys)) == (None, [True, True])


def test_refused_chunks_say_of_which_kind(open_client: Callable[..., Client]) -> None:
    client = open_client(32 * MIB, quotas={NAMESPACE: "1MiB"})
    too_long = bytes(client.stat("max_chunk_bytes") + 1)
    assert stored(client, ["long", "short"], [too_long, CHUNK]) == ("too_long", [False, True])
    assert stored(client, [make_key(1)], [pattern(2 * MIB, 2)]) == ("quota_full", [False])
    keys = [f"key {number}" for number in range(24)]
    client.store(dict.fromkeys(keys, CHUNK))
    client.connector.pin(keys)
    longest = bytes(client.stat("max_chunk_bytes"))
    assert stored(client, ["longest"], [longest]) == ("no_space", [False])


def test_a_full_queue_refuses_a_batch(open_client: Callable[..., Client]) -> None:
    with tuned(set_queue_operations=1):
        client = open_client(64 * MIB)
    submit = client.connector.submit_batch_set
    ids = [submit([make_key(number)], [CHUNK]) for number in range(50)]
    found = client.wait_codes(ids)
    assert found[ids[0]] is None
    assert set(found.values()) == {None, "queue_full"}
