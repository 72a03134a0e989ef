"""Stores that an earlier kvring wrote (make_old_stores.py) open with all that they hold."""

import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import kvring
from tests.python.conftest import REPOSITORY, Client, make_key, pattern
from tests.support.block_devices import attach_loop_over, require

FIXTURES = REPOSITORY / "tests" / "fixtures"
MANIFEST = json.loads((FIXTURES / "old_stores.json").read_text(encoding="utf-8"))
PRESENT = MANIFEST["present"]
ABSENT = MANIFEST["absent"]


class OldStore(NamedTuple):
    name: str
    path: Path


@pytest.fixture(
    params=[
        f"{kind}-{ending}"
        for kind in ("extents", "files", "device")
        for ending in ("closed", "killed")
    ]
)
def old_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldStore]:
    """Unpack one of the stores; the image of a device is put on a loop device."""
    name: str = request.param
    with tarfile.open(FIXTURES / "old_stores.tar.xz") as archive:
        of_store = [
            entry for entry in archive if entry.name == name or entry.name.startswith(f"{name}/")
        ]
        archive.extractall(tmp_path, of_store, filter="data")
    with ExitStack() as stack:
        path = tmp_path / name
        if name.startswith("device"):
            require("losetup")
            path = attach_loop_over(stack, path)
        yield OldStore(name, path)


def open_store(store: OldStore) -> Client:
    kind = store.name.split("-")[0]
    layout = {} if kind == "device" else {"layout": kind}
    # Its chunks were used long ago.
    return Client(kvring.Connector(store.path, MANIFEST["capacity_bytes"], ttl="off", **layout))


def assert_holds(client: Client, digests: dict[str, tuple[int, str]], absent: list[str]) -> None:
    """Compare every byte of every chunk."""
    assert client.exists(absent) == [False] * len(absent)
    assert client.exists(list(digests)) == [True] * len(digests)
    for key, (length_bytes, digest) in digests.items():
        content = client.load(key, length_bytes)
        assert content is not None, key
        assert hashlib.sha256(content).hexdigest() == digest, key
    for key in absent:
        assert client.load(key, 4096) is None
    assert client.stat("checksum_mismatch") == 0
    client.assert_sound()


def test_an_old_store_opens_with_all_its_chunks(old_store: OldStore) -> None:
    expected = {key: (one["bytes"], one["sha256"]) for key, one in PRESENT.items()}
    client = open_store(old_store)
    recovery = client.connector.recovery
    assert (recovery["reset"], recovery["kept"]) == (None, len(expected))
    assert recovery["clean_shutdown"] == old_store.name.endswith("closed")
    assert {key: recovery[key] for key in ("torn", "out_of_range", "overlapping", "orphans")} == {
        "torn": 0,
        "out_of_range": 0,
        "overlapping": 0,
        "orphans": 0,
    }
    assert_holds(client, expected, ABSENT)

    # It can be written to, and holds the old and the new.
    replaced, deleted = list(expected)[:2]
    new = {replaced: pattern(9001, 1), make_key(500): pattern(70_001, 2)}
    client.store(new)
    assert client.delete([deleted]) == [True]
    for key, content in new.items():
        expected[key] = (len(content), hashlib.sha256(content).hexdigest())
    del expected[deleted]
    for _ in range(2):
        assert_holds(client, expected, [*ABSENT, deleted])
        client.connector.close()
        client = open_store(old_store)
        assert client.connector.recovery["kept"] == len(expected)
    client.connector.close()
