"""Options, and what is said of those that do not fit."""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring._native import BenchPlan, BenchRun
from tests.python.conftest import CAPACITY_BYTES, Client, pattern

GIB = 1 << 30
CAPACITY_RANGE = "'all' or a size such as '500GiB' from 16 MiB to 1 PiB, or a list of up to 30"


class Number:
    """Stands for a whole number, as an integer of numpy does."""

    def __init__(self, value: int) -> None:
        """Note it."""
        self.value = value

    def __repr__(self) -> str:
        """Return the same in every process: it is a part of names of tests."""
        return f"Number({self.value})"

    def __index__(self) -> int:
        """Return it."""
        return self.value


@pytest.mark.parametrize(
    ("capacity", "expected_bytes"),
    [
        (GIB, GIB),
        (16 << 20, 16 << 20),
        (1 << 50, 1 << 50),
        ("1GiB", GIB),
        ("500 MiB", 500 << 20),
        ("1.5GB", 1_500_000_000),
        ("0.5GiB", GIB // 2),
        ("1TiB", 1 << 40),
        ("2 TB", 2_000_000_000_000),
        ("500gib", 500 * GIB),
        ("1073741824", GIB),
        ("100000000 B", 100_000_000),
        (1.5e9, 1_500_000_000),
        ("1.5e9", 1_500_000_000),
        (Number(GIB), GIB),
    ],
    ids=str,
)
def test_capacity_is_a_number_or_a_string(
    store_directory: Path, capacity: Any, expected_bytes: int
) -> None:
    with kvring.Connector(store_directory, capacity) as connector:
        assert connector.stats()["capacity_bytes"] == expected_bytes


# What is refused, and with which words beside the name and the range of the option.
REFUSED: list[tuple[str, Any, str]] = [
    ("capacity", (16 << 20) - 1, "16777215"),
    ("capacity", -1, "-1"),
    ("capacity", (1 << 50) + 1, "1125899906842625"),
    ("capacity", 1 << 200, str(1 << 200)),
    ("capacity", Number(5), "5 bytes"),
    ("capacity", math.nan, "NaN"),
    ("capacity", math.inf, "inf"),
    ("capacity", "", "''"),
    ("capacity", "nanGiB", "'nanGiB'"),
    ("capacity", "99EiB", "99EiB' is not valid: 101376 PiB is more than 1 PiB"),
    ("capacity", "1MiB", "1 MiB is less than 16 MiB"),
    ("capacity", "10 apples", "'apples' is no unit, which are B, KiB, MiB, GiB"),
    ("capacity", "1GiB and more", "'GiB and more' is no unit"),
    ("capacity", "-5GiB", "a size is not negative; a size is a number and a unit"),
    ("capacity", "many", "it does not begin with a number; a size is a number and a unit"),
    ("capacity", "1.2.3GiB", "'1.2.3' is no number; a size is a number and a unit"),
    ("capacity", 1.5, "it is not a whole number of bytes"),
    ("capacity", "50000000.5", "a number of bytes is a whole one"),
    ("capacity", True, "it is a truth value, not a whole number of bytes"),
    ("capacity", {"bytes": 1}, "it is a mapping, not a whole number of bytes"),
    ("min_free", True, "it is a truth value, not a whole number of bytes"),
    ("min_free", "2PiB", "'2PiB'"),
    ("io_threads", True, "a truth value, not a whole number; it takes 'auto' or 1 to 64 (thr"),
    ("io_threads", 1.5, "it is not a whole number; it takes 'auto' or 1 to 64 (threads)"),
    ("io_threads", "64KiB", "it is not a whole number; it takes 'auto' or 1 to 64 (threads)"),
    ("io_threads", 65, "65 is more than 64; it takes 'auto' or 1 to 64 (threads)"),
    ("io_threads", 0, "0"),
    ("io_threads", None, "None"),
    ("lease_s", False, "it is a truth value, not a whole number; it takes 0 to 3600 (seconds)"),
    ("lease_s", 3601, "3601"),
    ("lease_s", "off", "'off'"),
    ("ttl", True, "it is a truth value, not a number"),
    ("ttl", math.nan, "NaN"),
    ("ttl", {"seconds": 5}, "seconds"),
    ("ttl", 0, "0"),
    ("ttl", -1, "ttl' = -1 is not valid: a length of time is not negative; it takes"),
    ("ttl", "-1d", "'-1d' is not valid: a length of time is not negative; it takes"),
    ("ttl", 1e300, "is not valid: it is out of range; it takes"),
    ("ttl", "11y", "'11y'"),
    ("ttl", "none", "'none'"),
    ("eviction", "lruu", "it is not one of the choices; it takes"),
    ("eviction", "LRU", "'LRU'"),
    ("eviction", 7, "it is a number, not a string"),
    ("checksum", "md5", "'md5'"),
    ("checksum", False, "false"),
    ("set_queue_bytes", 5000, "5000"),
    ("quotas", {"model": 1}, "{'model': 1}"),
    ("quotas", {"model": {"salt": "1GiB"}}, "'salt': '1GiB'"),
    ("quotas", "1GiB", "'1GiB'"),
    ("quotas", {"model@salt": "many"}, "'many'"),
    ("quotas", {"model@salt": None}, "None"),
    ("quotas", {7: "1GiB"}, "7"),
    ("quotas", ["model@salt"], "model@salt"),
    ("admit", "second", "'second'"),
    ("write_budget", "1MiB", "'1MiB'"),
]


@pytest.mark.parametrize(("name", "value", "told"), REFUSED)
def test_a_value_that_does_not_fit_is_named_with_what_is_wrong_and_the_range(
    store_directory: Path, name: str, value: Any, told: str
) -> None:
    options = {"capacity": CAPACITY_BYTES, name: value}
    with pytest.raises(kvring.ConfigError) as refusal:
        kvring.Connector(store_directory, **options)
    message = str(refusal.value)
    assert f"'{name}'" in message
    assert told in message
    expected_range = CAPACITY_RANGE if name == "capacity" else kvring.options()[name]["range"]
    assert expected_range is not None
    assert expected_range in message
    assert not store_directory.exists(), "nothing is made for options that do not fit"


@pytest.mark.parametrize(
    ("options", "stat", "expected"),
    [
        ({"lease_s": 64.0, "io_threads": Number(2)}, "io_threads", 2),
        ({"io_threads": 3.0}, "io_threads", 3),
        ({"lease_s": 5.0, "min_free": 0.0, "io_threads": "1"}, "io_threads", 1),
    ],
    ids=str,
)
def test_whole_numbers_are_taken_in_any_form(
    store_directory: Path, options: dict[str, Any], stat: str, expected: int
) -> None:
    with kvring.Connector(store_directory, CAPACITY_BYTES, **options) as connector:
        assert connector.stats()[stat] == expected


@pytest.mark.parametrize("name", ["evicton", "Path", "l1_memory_desc", ""])
def test_an_unknown_option_lists_those_that_exist(store_directory: Path, name: str) -> None:
    with pytest.raises(kvring.ConfigError) as refusal:
        kvring.Connector(store_directory, CAPACITY_BYTES, **{name: 1})
    options = ", ".join(kvring.options())
    assert str(refusal.value) == f"unknown option '{name}'; the options are: {options}"
    assert not store_directory.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": "p"},
        {"capacity": "1GiB"},
        {"path": "p", "capacity": None},
        {"path": None, "capacity": "1GiB"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "opener", [kvring.Connector, partial(BenchRun, BenchPlan())], ids=["Connector", "BenchRun"]
)
def test_path_and_capacity_are_required(
    opener: Callable[..., object], arguments: dict[str, Any]
) -> None:
    missing = [name for name in ("path", "capacity") if arguments.get(name) is None]
    with pytest.raises(kvring.ConfigError) as refusal:
        opener(**arguments)
    names = ", ".join(f"'{name}'" for name in missing)
    example = '"path": "/mnt/nvme/kvring", "capacity": "500GiB"'
    assert str(refusal.value) == f"required and not given: {names}; for example {example}"


@pytest.mark.parametrize("kind", ["file", "FIFO"])
def test_a_path_that_is_no_directory_is_called_what_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    if kind == "file":
        path.write_bytes(b"content")
    else:
        os.mkfifo(path)
    with pytest.raises(kvring.ConfigError) as refusal:
        kvring.Connector(path, CAPACITY_BYTES)
    told = f"{path} cannot hold a store: it is a {kind}"
    assert str(refusal.value).startswith(told)
    assert "give a directory" in str(refusal.value)
    assert "or a block device" in str(refusal.value)
    assert kind == "FIFO" or path.read_bytes() == b"content"


def test_a_floor_above_the_whole_file_system_is_warned_of(
    store_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_directory.mkdir()
    file_system = os.statvfs(store_directory)
    all_bytes = file_system.f_blocks * file_system.f_frsize
    kvring.Connector(store_directory, CAPACITY_BYTES, min_free=all_bytes).close()
    assert not [line for line in caplog.messages if "more than its file system" in line]
    if all_bytes >= 1 << 50:
        pytest.skip("the file system is as large as any min_free")
    with kvring.Connector(store_directory, CAPACITY_BYTES, min_free="1PiB") as connector:
        connector.stats()
    (line,) = [line for line in caplog.messages if "more than its file system" in line]
    assert f"{store_directory}: min_free = 1.0 PiB is more than its file system has" in line
    power = min((all_bytes.bit_length() - 1) // 10, 5)
    assert f"{all_bytes / 1024**power:.1f} {' KMGTP'[power]}iB in all" in line
    assert "lower min_free" in line


def test_options_tells_unit_default_range_and_meaning() -> None:
    options = kvring.options()
    assert list(options)[:2] == ["path", "capacity"]
    for option in options.values():
        assert list(option) == ["unit", "default", "range", "meaning"]
        assert all(type(option[field]) is str for field in ("unit", "range", "meaning"))
        assert option["range"]
        assert option["meaning"]
    required = [name for name, option in options.items() if option["default"] is None]
    assert required == ["path", "capacity"]


@pytest.mark.parametrize(
    "options",
    [
        {"io_threads": 1, "checksum": "off", "lease_s": 0, "min_free": 0, "ttl": 1},
        {"io_threads": "64", "lease_s": 3600, "min_free": "auto", "ttl": "1h 30m"},
        {"set_queue_bytes": "1MiB", "min_free": "1GiB", "ttl": 1.5, "quotas": "none"},
        {"set_queue_bytes": 1 << 40, "ttl": "10 years", "quotas": {}, "admit": "always"},
        {"ttl": "off", "quotas": {"model": 1 << 20, "model@salt": "1PiB", "": "5 GB"}},
        {"ttl": "3600", "write_budget": "off"},
        {"write_budget": "1PiB"},
    ],
    ids=str,
)
def test_a_store_works_with_values_at_both_ends(
    store_directory: Path, options: dict[str, Any]
) -> None:
    chunks = {str(seed): pattern(300_001 * seed + 1, seed) for seed in range(4)}
    with kvring.Connector(store_directory, CAPACITY_BYTES, **options) as connector:
        client = Client(connector)
        client.store(chunks)
        assert {key: client.load(key, len(content)) for key, content in chunks.items()} == chunks
