"""Paths, and the tree of exceptions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import CAPACITY_BYTES, Client


class OwnPath:
    """A path of a caller's own kind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.mark.parametrize("kind", [str, Path, OwnPath])
def test_the_path_is_a_string_or_any_path(
    store_directory: Path, kind: Callable[[Path], Any]
) -> None:
    for _ in range(2):
        with kvring.Connector(kind(store_directory), CAPACITY_BYTES) as connector:
            assert str(store_directory) in repr(connector)
    assert list(store_directory.iterdir())


def test_missing_directories_are_made(store_directory: Path) -> None:
    nested = store_directory / "a" / "b c" / "ü"
    with kvring.Connector(nested, CAPACITY_BYTES) as connector:
        Client(connector).store({"key": b"content"})
    with kvring.Connector(nested, CAPACITY_BYTES) as connector:
        assert Client(connector).load("key", 7) == b"content"


def test_a_relative_path_is_meant_from_here(
    store_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_directory.mkdir()
    monkeypatch.chdir(store_directory)
    with kvring.Connector("below", CAPACITY_BYTES):
        assert list((store_directory / "below").iterdir())


@pytest.mark.parametrize(("below", "error"), [("", FileExistsError), ("store", NotADirectoryError)])
def test_a_path_that_the_system_refuses_raises_its_own_error(
    tmp_path: Path, below: str, error: type[OSError]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    with pytest.raises(error) as refusal:
        kvring.Connector(file / below, CAPACITY_BYTES)
    assert type(refusal.value) is error
    assert refusal.value.errno is not None
    assert str(file / below) in str(refusal.value)
    assert file.read_bytes() == b"content"


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(kvring.ConfigError, match="'path' = '' is not valid"):
        kvring.Connector("", CAPACITY_BYTES)


@pytest.mark.parametrize("path", [1, True, 1.5, None, ["path"]], ids=str)
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(kvring.ConfigError, match="'path'"):
        kvring.Connector(path, CAPACITY_BYTES)


def test_the_tree_of_exceptions() -> None:
    errors = [
        kvring.ConfigError,
        kvring.InUseError,
        kvring.FormatError,
        kvring.EngineError,
        kvring.SubmitError,
        kvring.ClosedError,
    ]
    assert kvring.KvRingError.__base__ is Exception
    assert all(issubclass(error, kvring.KvRingError) for error in errors)
    assert kvring.ClosedError.__base__ is kvring.SubmitError
    assert all(error.__base__ is kvring.KvRingError for error in errors[:-1])
    assert all(error.__module__ == "kvring" and error.__doc__ for error in errors)


def test_a_store_of_a_newer_format_is_left_as_it_is(store_directory: Path) -> None:
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        Client(connector).store({"key": b"content"})
    index = store_directory / "index.kvring"
    whole = index.read_bytes()
    # The header says its version in the four bytes behind the magic; find it by what it is.
    newer = whole[:8] + (int.from_bytes(whole[8:12], "little") + 1).to_bytes(4, "little")
    index.write_bytes(newer + whole[12:])
    before = {path.name: path.read_bytes()[:65536] for path in store_directory.iterdir()}
    with pytest.raises(kvring.FormatError, match="upgrade kvring"):
        kvring.Connector(store_directory, CAPACITY_BYTES)
    after = {path.name: path.read_bytes()[:65536] for path in store_directory.iterdir()}
    assert after == before
    index.write_bytes(whole)
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        assert Client(connector).load("key", 7) == b"content"


def test_the_package_exports_what_it_says() -> None:
    assert {"Connector", "options", "__version__", "KvRingError"} <= set(kvring.__all__)
    assert all(hasattr(kvring, name) for name in kvring.__all__)
    assert kvring.Connector.__module__ == "kvring"
    parts = kvring.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts[:2])


def test_the_connector_has_what_lmcache_checks_for(client: Client) -> None:
    methods = ("set", "get", "exists", "delete")
    names = ["event_fd", "drain_completions", "close", *(f"submit_batch_{one}" for one in methods)]
    assert all(callable(getattr(client.connector, name)) for name in names)
    # LMCache passes no keywords today; the names are those of its own connectors.
    connector = client.connector
    future_ids = [
        connector.submit_batch_set(keys=["key"], memoryviews=[memoryview(b"content")]),
        connector.submit_batch_get(keys=["key"], memoryviews=[memoryview(bytearray(7))]),
        connector.submit_batch_exists(keys=["key"]),
        connector.submit_batch_delete(keys=["key"]),
    ]
    assert all(completion.ok for completion in client.wait_all(future_ids))
