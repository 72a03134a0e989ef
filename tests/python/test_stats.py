"""stats() and repr()."""

from pathlib import Path

import kvring
from tests.python.conftest import MIB, Client, make_memory, pattern

# What test_every_operation_is_counted does.
COUNTED = {
    "set_stored": 2,
    "set_unchanged": 1,
    "get_hits": 2,
    "get_misses": 2,
    "exists_hits": 1,
    "exists_misses": 2,
    "deleted": 1,
    "delete_absent": 1,
    "read_bytes": 30_000,
    "written_bytes": 30_000,
}
ALL_WELL = (
    "set_failed",
    "set_too_long",
    "checksum_mismatch",
    "read_errors",
    "write_errors",
    "store_full",
    "hash_collision",
    "abandoned",
)


def test_every_operation_is_counted(client: Client) -> None:
    assert {client.stat(name) for name in (*COUNTED, *ALL_WELL)} == {0}
    client.store({"a": pattern(10_000, 1), "b": pattern(20_000, 2)})
    client.store({"a": pattern(10_000, 1)})
    client.get(["a", "b", "none", "a"], [make_memory(size) for size in (10_000, 20_000, 1, 2)])
    client.exists(["a", "none", "none either"])
    client.delete(["a", "none"])
    assert {name: client.stat(name) for name in COUNTED} == COUNTED
    assert {client.stat(name) for name in ALL_WELL} == {0}


def test_repr_tells_path_capacity_and_state(client: Client, store_directory: Path) -> None:
    client.store({"first": pattern(4097, 1), "second": pattern(1, 2)})
    start = f'kvring.Connector(path="{store_directory}", capacity={256 * MIB}): '
    assert repr(client.connector) == start + "2 keys, 4098 bytes"
    client.connector.close()
    assert repr(client.connector) == start + "closed"


def test_direct_io_is_what_the_file_system_can_do(client: Client) -> None:
    """On a disk, so that all other tests do try O_DIRECT."""
    assert client.connector.stats()["direct_io"] is True


def test_documentation_is_there() -> None:
    assert kvring.Connector.__doc__
    for name in ("event_fd", "submit_batch_set", "submit_batch_delete", "close", "stats"):
        assert getattr(kvring.Connector, name).__doc__
    # Line 15: state what True means where the method is documented.
    assert "not here any more" in str(kvring.Connector.submit_batch_delete.__doc__)
