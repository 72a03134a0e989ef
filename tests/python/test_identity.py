"""Engines of different identities in one store: none sees what another has stored."""

import re
from pathlib import Path

import pytest

import kvring
from kvring._native import MemoryTasks
from tests.python.conftest import CAPACITY_BYTES, Client, make_memory

KEY = "meta/llama@00000001@0@abcd"
SALTED = f"{KEY}@tenant"


def open_with(path: Path, identity: str) -> Client:
    return Client(kvring.Connector(path, CAPACITY_BYTES, identity=identity))


def test_calls_are_of_the_own_key_and_namespaces_those_of_the_whole_store(tmp_path: Path) -> None:
    for identity in ("one", "two"):
        client = open_with(tmp_path, identity)
        client.store({KEY: b"x" * 5000})
        client.connector.close()
    client = open_with(tmp_path, "one")
    assert client.connector.pin([KEY]) == [True]
    assert client.connector.unpin([KEY]) == [True]
    assert client.connector.touch([KEY]) == [True]
    assert client.delete([KEY]) == [True]
    assert client.exists([KEY]) == [False]
    assert client.connector.keys("two#meta/llama")[0] == [(f"two#{KEY}", "stored")]
    client.connector.close()
    client = open_with(tmp_path, "two")
    assert client.exists([KEY]) == [True]
    client.connector.close()
    client = open_with(tmp_path, "one")
    assert client.connector.purge("two#meta/llama")["keys"] == 1
    client.connector.close()
    client = open_with(tmp_path, "two")
    assert client.exists([KEY]) == [False]
    client.connector.close()


def test_an_engine_is_told_of_its_own_keys_alone(tmp_path: Path) -> None:
    for identity in ("one", "two"):
        client = open_with(tmp_path, identity)
        client.store({f"{KEY}{identity}": b"x" * 5000 for KEY in ("m@1@0@a", "m@1@0@b")})
        client.connector.close()
    with kvring.Connector(tmp_path, CAPACITY_BYTES, identity="one") as store:
        tasks = MemoryTasks(store)
        tasks.watch_keys()
        assert sorted(tasks.take_stored_keys(100)[0]) == ["m@1@0@aone", "m@1@0@bone"]
        assert tasks.take_stored_keys(100) == ([], [])
        memory = make_memory(4096)
        tasks.wait(store.submit_batch_set(["m@1@0@c"], [memory]))
        store.purge("two#m")
        tasks.wait(store.submit_batch_delete(["m@1@0@aone"]))
        stored, gone = tasks.take_key_events(100)
        assert stored == ("stored", ["m@1@0@c"], [4096])
        assert gone[:2] == ("gone", ["m@1@0@aone"])


@pytest.mark.parametrize("identity", ["", "a b", "a#b", "a@b", "a/b", "x" * 65, 5, ["a"]])
def test_a_wrong_identity_is_refused_by_name(tmp_path: Path, identity: object) -> None:
    with pytest.raises(kvring.ConfigError, match=re.escape("'identity'")) as raised:
        kvring.Connector(tmp_path / "store", CAPACITY_BYTES, identity=identity)
    assert "A-Z a-z 0-9 . _ -" in str(raised.value)
    assert not (tmp_path / "store").exists()
