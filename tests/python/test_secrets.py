"""Keys and the salts in them: what a terminal, a log, the metrics and an archive make of them."""

import json
import logging
import os
import stat
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import kvring
from kvring._native import StoredChunks
from kvring.cli import main
from kvring.metrics import collector
from tests.python.conftest import MIB, Client, make_key, pattern
from tests.support.damage import damage

SALT = "salt-of-a-tenant"

# What clears the screen, sets its title, rings, goes back in the line, begins another, turns the
# text round; 0x9b begins a command in some terminals. Then what pages, Rich and formats obey.
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "back\b\b\b",
    "over\rwritten",
    "line\nkvring: all is well",
    "\x9b31m",
    "\u202egnirts",
    "\u2028",
    "\x7f\0",
    "<img src=x onerror=alert(1)>",
    "[red]markup[/red]",
    ":boom:",
    "%s%n{}",
    '"\\',
)


def every_character() -> list[str]:
    """Return keys that have each character up to U+3000, and some of 4 KiB."""
    characters = [chr(code) for code in range(0x3000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(characters[start : start + 1000]) for start in range(0, len(characters), 1000)]
    return [*texts, "\x1b" * 4096, "\0", "\U0010ffff" * 1024]


def hostile_keys() -> list[str]:
    """Return keys as they are, and in the names of models and salts."""
    in_names = [f"{text.replace('@', '')}@0@0@ab@{text.replace('@', '')}" for text in HOSTILE]
    return [*HOSTILE, *every_character(), *in_names]


def assert_harmless(shown: str) -> None:
    """Check that a terminal would show a text, and obey nothing in it."""
    wrong = {
        one
        for one in shown
        if one != "\n" and unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }
    assert not wrong, [hex(ord(one)) for one in wrong]


@pytest.fixture
def hostile_client(open_client: Callable[..., Client]) -> Client:
    """A client of a store with hostile keys."""
    client = open_client("64MiB")
    client.store({key: pattern(100, number) for number, key in enumerate(hostile_keys())})
    return client


def test_keys_of_any_kind_do_nothing_to_a_terminal(
    hostile_client: Client,
    store_directory: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path, archive = str(store_directory), str(tmp_path / "archive.tar")
    for arguments in (
        ["ls", path],
        ["usage", path],
        ["info", path],
        ["stats", path],
        ["top", path, "--count=1", "--interval=0.1"],
        ["verify", path],
        ["export", path, "--output", archive],
        *(["purge", path, "--yes", "--namespace", f"{text}@{text}"] for text in HOSTILE[:5]),
    ):
        assert main(arguments) == 0
        shown = capsys.readouterr()
        assert_harmless(shown.out + shown.err)
    hostile_client.connector.close()
    # What is wrong with a chunk is told with its key.
    target = tmp_path / "target"
    assert main(["import", str(target), "--input", archive, "--capacity=64MiB"]) == 0
    assert {chunk["key"] for chunk in StoredChunks(target)} == set(hostile_keys())
    damage(target)
    assert main(["verify", str(target)]) == 1
    assert main(["export", str(target), "--output", archive]) == 4
    shown = capsys.readouterr()
    assert "is damaged, and left out" in shown.err
    assert_harmless(shown.out + shown.err)


def test_programs_get_keys_as_they_are(
    hostile_client: Client, store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = hostile_keys()
    assert hostile_client.exists(keys) == [True] * len(keys)
    assert main(["ls", "--json", str(store_directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(json.loads(line)["key"] for line in lines) == sorted(keys)
    names = set(hostile_client.connector.usage())
    assert main(["usage", "--json", str(store_directory)]) == 0
    assert set(json.loads(capsys.readouterr().out)["namespaces"]) == names
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    told = {
        sample.labels["namespace"]
        for family in families
        if family.name == "kvring_namespace_bytes"
        for sample in family.samples
        if sample.labels["store"] == str(store_directory)
    }
    assert told
    assert told <= names | {"others"}


def test_a_namespace_that_is_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte of the command line that is no UTF-8."""
    with kvring.Connector(tmp_path / "store", "64MiB") as connector:
        Client(connector).store({make_key(1, SALT): b"content"})
    assert main(["purge", str(tmp_path / "store"), "--yes", "--namespace", "\udc80"]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_an_archive_is_its_users_alone(tmp_path: Path) -> None:
    source, archive = tmp_path / "source", tmp_path / "archive.tar"
    with kvring.Connector(source, "64MiB") as connector:
        Client(connector).store({make_key(1, SALT): pattern(MIB, 1)})
    before = os.umask(0)
    try:
        assert main(["export", str(source), "--output", str(archive)]) == 0
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        # Whoever has made it before has chosen who reads it.
        archive.chmod(0o640)
        assert main(["export", str(source), "--output", str(archive)]) == 0
        assert stat.S_IMODE(archive.stat().st_mode) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("layout", ["extents", "files"])
def test_no_salt_and_no_hash_is_logged(
    store_directory: Path, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with chunks, and at whatever level."""
    caplog.set_level(logging.DEBUG)
    quotas = {f"test/model@{SALT}": "4MiB"}
    keys = [make_key(number, SALT) for number in range(40)]
    errors = []

    def opened() -> kvring.Connector:
        return kvring.Connector(store_directory, "32MiB", layout=layout, quotas=quotas)

    with opened() as connector:
        client = Client(connector)
        client.store({key: pattern(100_000, 1) for key in keys[:5]})
        connector.pin(keys[:5])
        # Past its quota, and longer than fits at all.
        errors += [client.set([keys[5]], [pattern(8 * MIB, 1)]).error]
        errors += [client.set([keys[6]], [pattern(4 * MIB - 4096, 1)]).error]
        client.set(keys, [pattern(MIB, 1)] * len(keys))
        client.delete(keys[20:])
        connector.unpin(keys[:5])
    damage(store_directory)
    with opened() as connector:
        client = Client(connector)
        for key in keys:
            client.load(key, 100_000)
            client.load(key, MIB)
        assert client.stat("checksum_mismatch") > 0
        connector.purge(f"test/model@{SALT}")
    told = caplog.text + "\n".join(errors)
    assert "no room for" in told
    assert "test/model@..." in told
    assert "does not match its checksum" in told
    assert SALT not in told.replace(f"test_no_{SALT}", "")
    assert not [key for key in keys if key.split("@")[3] in told]
