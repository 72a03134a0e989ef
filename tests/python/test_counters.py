"""counters(), stats() and repr()."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.conftest import MIB, Client, make_key, make_memory, pattern

CONTENT = pattern(MIB, 1)
GROUPS = ("storage", "writer", "lookup")


def test_what_the_store_has_learnt_is_told(open_client: Callable[..., Client]) -> None:
    """Chunks that were loaded, evicted and stored again teach it that those have more worth."""
    client = open_client(32 * MIB, lease_s=0)
    assert client.connector.stats()["eviction_bonus"] == 1
    assert client.connector.stats()["admitted_share"] == 1
    for number in range(48 * 4):
        key = make_key(number % 48)
        client.store({key: CONTENT})
        client.get([key], [make_memory(MIB)])
    stats = client.connector.stats()
    assert stats["returned_keys"] > 48
    assert stats["eviction_bonus"] == stats["admitted_share"] < 0.5


@pytest.mark.parametrize("options", [{"admit": "always"}, {"eviction": "lru"}])
def test_all_is_admitted_where_that_is_not_learnt(
    open_client: Callable[..., Client], options: dict[str, str]
) -> None:
    client = open_client(32 * MIB, lease_s=0, **options)
    for number in range(48 * 4):
        key = make_key(number % 48)
        client.store({key: CONTENT})
        client.get([key], [make_memory(MIB)])
    stats = client.connector.stats()
    assert stats["eviction_bonus"] < 0.5
    assert stats["admitted_share"] == 1
    assert (stats["set_not_admitted"], stats["not_admitted_bytes"]) == (0, 0)


def test_bytes_that_were_not_written_are_counted(open_client: Callable[..., Client]) -> None:
    client = open_client(admit="second_use", write_budget="1GiB")
    client.store({"key": CONTENT[:5000]})
    assert client.connector.stats()["not_admitted_bytes"] == 5000
    # An hour's worth is 42.7 MiB.
    keys = [make_key(number) for number in range(50)]
    for _ in range(2):
        client.store(dict.fromkeys(keys, CONTENT))
    stats = client.connector.stats()
    assert stats["not_admitted_bytes"] == 5000 + 50 * MIB
    assert stats["over_write_budget_bytes"] == stats["set_over_write_budget"] * MIB > 0
    assert stats["over_write_budget_bytes"] + stats["written_bytes"] == 50 * MIB
    assert [path["written_bytes"] for path in stats["paths"]] == [stats["written_bytes"]]


def test_groups_merge_without_a_clash(client: Client) -> None:
    counters = client.connector.counters()
    names = Counter(name for group in counters.values() for name in group)
    assert max(names.values()) == 1
    assert all(type(value) is int for group in counters.values() for value in group.values())
    # Nor do they clash with those of stats().
    assert not names.keys() & client.connector.stats().keys()


def test_groups_count_what_happens(open_client: Callable[..., Client]) -> None:
    client = open_client(32 * MIB, quotas={"small": "1MiB"})
    keys = [make_key(number) for number in range(40)]
    client.store(dict.fromkeys(keys, CONTENT))
    # The last key of a batch is stored first.
    client.store(dict.fromkeys(keys[:1], CONTENT))
    assert not client.set(["small@0@0@0"], [pattern(2 * MIB, 1)]).ok
    client.exists([*keys[:3], "none"])
    client.get([keys[0], "none"], [bytearray(MIB), bytearray(1)])
    groups = client.connector.counters()
    storage, writer, lookup = (groups[group] for group in GROUPS)
    stats = client.connector.stats()
    assert storage == {
        "ssd_save_success": 40,
        "ssd_save_fail": 1,
        "ssd_save_dedup_skip": 1,
        "ssd_save_not_admitted": 0,
        "ssd_stale_index_cleaned": 0,
        "ssd_hash_collision_detected": 0,
        "ssd_evicted": stats["evicted"],
        "ssd_evicted_bytes": stats["evicted"] * MIB,
        "ssd_expired": 0,
        "ssd_expired_bytes": 0,
        "ssd_written_bytes": 40 * MIB,
        "ssd_read_bytes": MIB,
        "ssd_used_bytes": stats["used_bytes"],
        "ssd_capacity_bytes": 32 * MIB,
    }
    assert stats["evicted"] >= 9
    assert writer == {
        "writer_enqueue_total": 42,
        "writer_enqueue_dedup_skip": 0,
        "writer_save_success": 40,
        "writer_save_fail": 1,
        "writer_queue_full": 0,
        "writer_retry_attempts": 0,
        "writer_retry_final_fail": 0,
    }
    assert (lookup["kv_lookup_hits"], lookup["kv_lookup_miss"]) == (3, 1)
    assert (lookup["kv_promote_hits"], lookup["kv_promote_fail"]) == (1, 1)


@pytest.mark.parametrize("name", ["stats", "counters"])
def test_they_can_be_asked_after_close(client: Client, name: str) -> None:
    client.store({"key": b"content"})
    client.connector.close()
    assert "1" in str(getattr(client.connector, name)())


def test_repr_tells_path_capacity_and_state(client: Client, store_directory: Path) -> None:
    client.store({"first": pattern(4097, 1), "second": pattern(1, 2)})
    start = f'kvring.Connector(path="{store_directory}", capacity={256 * MIB}): '
    assert repr(client.connector) == start + "2 keys, 4098 bytes"
    client.connector.close()
    assert repr(client.connector) == start + "closed"


def test_direct_io_is_what_the_file_system_can_do(client: Client) -> None:
    """On a disk, so that all other tests do try O_DIRECT."""
    assert client.connector.stats()["direct_io"] is True
