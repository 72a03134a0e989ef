"""stats() and repr()."""

from pathlib import Path

from tests.python.conftest import MIB, Client, pattern


def test_repr_tells_path_capacity_and_state(client: Client, store_directory: Path) -> None:
    client.store({"first": pattern(4097, 1), "second": pattern(1, 2)})
    start = f'kvring.Connector(path="{store_directory}", capacity={256 * MIB}): '
    assert repr(client.connector) == start + "2 keys, 4098 bytes"
    client.connector.close()
    assert repr(client.connector) == start + "closed"


def test_direct_io_is_what_the_file_system_can_do(client: Client) -> None:
    """On a disk, so that all other tests do try O_DIRECT."""
    assert client.connector.stats()["direct_io"] is True
