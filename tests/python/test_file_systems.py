"""Stores on file systems that are not as those of the matrix: overlayfs, as of containers."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import Client, make_key, pattern

pytestmark = pytest.mark.root

KEYS = [make_key(number) for number in range(20)]
LAYOUTS = pytest.mark.parametrize("layout", ["extents", "files"])


def content(number: int) -> bytes:
    """Return what a key has."""
    return pattern(100_000 + number, number)


def fill(path: Path, layout: str) -> None:
    """Make a store, and close it."""
    with kvring.Connector(path, "32MiB", layout=layout) as connector:
        Client(connector).store({key: content(number) for number, key in enumerate(KEYS)})


def assert_holds_all(client: Client) -> None:
    for number, key in enumerate(KEYS):
        assert client.load(key, 100_000 + number) == content(number)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount overlays over `tmp_path/lower`, each with an upper layer of its own on a tmpfs."""
    mounted: list[Path] = []

    def mount(*arguments: object) -> None:
        done = subprocess.run(
            ["mount", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"mount {arguments}: {done.stderr}")
        mounted.append(Path(str(arguments[-1])))

    def make(name: str) -> Path:
        layers, merged = tmp_path / f"layers-{name}", tmp_path / f"merged-{name}"
        layers.mkdir()
        merged.mkdir()
        mount("-t", "tmpfs", "none", layers)
        (layers / "upper").mkdir()
        (layers / "work").mkdir()
        (tmp_path / "lower").mkdir(exist_ok=True)
        options = f"lowerdir={tmp_path}/lower,upperdir={layers}/upper,workdir={layers}/work"
        mount("-t", "overlay", "none", "-o", options, merged)
        return merged

    try:
        yield make
    finally:
        for one in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(one)], check=True)


@LAYOUTS
def test_a_store_in_a_lower_layer_stays_as_it_is(
    overlay: Callable[[str], Path], tmp_path: Path, layout: str
) -> None:
    """As of an image from which several containers start: each has a copy of its own."""
    lower = tmp_path / "lower" / "store"
    fill(lower, layout)
    (lower / "owner-socket.kvring").unlink()
    before = tmp_path / "before"
    shutil.copytree(lower, before)
    stores = [overlay(name) / "store" for name in ("one", "two")]
    opened = [kvring.Connector(store, "32MiB", layout=layout) for store in stores]
    for version, connector in enumerate(opened):
        client = Client(connector)
        assert_holds_all(client)
        client.store({key: pattern(50_000, version) for key in KEYS})
    for version, connector in enumerate(opened):
        client = Client(connector)
        assert all(client.load(key, 50_000) == pattern(50_000, version) for key in KEYS)
        client.assert_sound()
        assert [path["reason"] for path in connector.stats()["paths"]] == [""]
        assert connector.close()["shutdown_clean"]
    same = subprocess.run(["diff", "-r", str(before), str(lower)], check=False)
    assert same.returncode == 0
    for version, store in enumerate(stores):
        with kvring.Connector(store, "32MiB", layout=layout) as connector:
            client = Client(connector)
            assert all(client.load(key, 50_000) == pattern(50_000, version) for key in KEYS)
