"""Files of a store that come from a backup, in part or while it is open: no wrong byte.

A chunk that was replaced or deleted since the backup may come back as it was then: nothing in a
store tells an older state of it from the newest one.
"""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.python.conftest import Client, make_key, pattern

KEYS = [make_key(number) for number in range(30)]
LENGTH_BYTES = 20_000
CAPACITY = "16MiB"


@cache
def content(number: int, version: int) -> bytes:
    """Return what a key has in a version of it."""
    return pattern(LENGTH_BYTES, 1000 * version + number)


def change(client: Client, version: int) -> None:
    """Replace some chunks, delete some, and store some anew; a third stays as it was first."""
    chosen = [number for number in range(len(KEYS)) if version == 0 or number % 3]
    client.store({KEYS[number]: content(number, version) for number in chosen})
    client.delete([KEYS[number] for number in chosen[version::5] if number % 3])


def assert_no_wrong_byte(client: Client, versions: int) -> int:
    """Load every key, and return how many there are: each has bytes that were stored for it."""
    found = 0
    for number, key in enumerate(KEYS):
        loaded = client.load(key, LENGTH_BYTES)
        known = [content(number, version) for version in range(versions)]
        assert loaded is None or loaded in known, key
        found += loaded is not None
    return found


def assert_works(client: Client) -> None:
    """Store everything once more, and find it."""
    client.store({key: content(number, 9) for number, key in enumerate(KEYS)})
    for number, key in enumerate(KEYS):
        assert client.load(key, LENGTH_BYTES) == content(number, 9)
    client.assert_sound()


def parts(store: Path) -> tuple[list[Path], list[Path]]:
    """Return the index, and all that holds chunks."""
    files = [path for path in store.rglob("*") if path.is_file()]
    index = store / "index.kvring"
    return [index], [path for path in files if path != index]


def put_back(backup: Path, store: Path, names: list[Path]) -> None:
    """Put files of a backup in the place of those of a store."""
    for name in names:
        (store / name).parent.mkdir(exist_ok=True)
        shutil.copy2(backup / name, store / name)


Open = Callable[..., Client]


def versions_of(store: Path, layout: str, open_client: Open, backups: Path) -> int:
    """Make a store that has changed several times, closed, with a backup of each state."""
    versions = 3
    for version in range(versions):
        client = open_client(CAPACITY, layout=layout, lease_s=0)
        change(client, version)
        client.connector.close()
        shutil.copytree(store, backups / str(version), ignore=shutil.ignore_patterns("*socket*"))
    return versions


@pytest.mark.parametrize(
    ("layout", "what"),
    [("extents", "index"), ("extents", "data"), ("extents", "both"), ("files", "both")],
)
def test_put_back_while_the_store_is_open(
    store_directory: Path, tmp_path: Path, layout: str, open_client: Open, what: str
) -> None:
    """By a program that writes over the files (cp, rsync --inplace), which have no lock for it."""
    backups = tmp_path / "backups"
    versions = versions_of(store_directory, layout, open_client, backups)
    client = open_client(CAPACITY, layout=layout, lease_s=0)
    for version in range(versions - 1):
        backup = backups / str(version)
        index, data = parts(backup)
        chosen = {"index": index, "data": data, "both": index + data}[what]
        put_back(backup, store_directory, [one.relative_to(backup) for one in chosen])
        assert_no_wrong_byte(client, versions)
        change(client, version)
        assert_no_wrong_byte(client, versions)
    client.connector.close()
    client = open_client(CAPACITY, layout=layout, lease_s=0)
    assert_no_wrong_byte(client, versions)
    assert_works(client)
