"""Commands whose input or output is closed, cut, full, or read by nobody."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvring._native import StoredChunks
from kvring.cli.output import count_text
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, make_key, pattern

KVRING = f"{sys.executable} -m kvring"


@pytest.fixture
def store(client: Client, store_directory: Path) -> Path:
    """A store of eight chunks of a MiB, closed."""
    client.store({make_key(number): pattern(MIB, number) for number in range(8)})
    client.connector.close()
    return store_directory


def shell(script: str, store: Path) -> tuple[int, str]:
    """Run a line of bash on a store; return its status and what went to standard error."""
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}", "bash", str(store)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_DEADLINE_S,
    )
    return ended.returncode, ended.stderr


def into_a_pipe_of_nobody(*arguments: str) -> tuple[int, str]:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kvring", *arguments]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "command", ["info $1", "ls $1", "export $1", "verify $1", "--help", "config /mnt/a 1GiB"]
)
def test_a_closed_output_is_said(store: Path, command: str) -> None:
    status, told = shell(f"{KVRING} {command} >&-", store)
    assert (status, told.count("\n")) == (1, 1)
    assert "standard output is closed" in told


@pytest.mark.parametrize("arguments", ["--help", "--version", "purge --help", "verify -h"])
def test_help_that_is_not_read_to_its_end_is_no_failure(arguments: str) -> None:
    assert into_a_pipe_of_nobody(*arguments.split()) == (0, "")


@pytest.mark.parametrize("command", ["info $1", "ls $1", "--help"])
def test_a_full_disk_below_the_output_is_said_of_the_output(store: Path, command: str) -> None:
    told = "kvring: the output cannot be written: No space left on device\n"
    assert shell(f"{KVRING} {command} >/dev/full", store) == (1, told)


def test_other_streams_may_be_closed(store: Path) -> None:
    assert shell(f"{KVRING} info $1 2>&- >/dev/null", store) == (0, "")
    assert shell(f"{KVRING} info $1/none 2>&- >/dev/null", store) == (1, "")
    status, told = shell(f"{KVRING} import $1 --capacity 64MiB <&-", store)
    assert (status, "it is no archive of kvring" in told) == (1, True)
    status, told = shell(f"{KVRING} purge $1 --model test/model <&- >/dev/null", store)
    assert (status, "no terminal" in told) == (1, True)


def test_an_archive_whose_reader_is_gone_is_cut_short(store: Path, tmp_path: Path) -> None:
    archive = tmp_path / "cut.tar"
    status, told = shell(f"{KVRING} export $1 | head -c 1500000 > {archive}", store)
    assert (status, "its reader is gone; the archive is cut short behind" in told) == (1, True)
    status, told = shell(f"{KVRING} import $1-new --capacity 64MiB < {archive}", store)
    assert (status, "it was cut short" in told) == (4, True)
    status, told = shell(f"{KVRING} export $1 > /dev/full", store)
    assert (status, "No space left on device; the archive is cut short" in told) == (1, True)
    status, told = shell(f"{KVRING} export $1 --output $1/none/there", store)
    assert (status, "/none/there' cannot be written: No such file" in told) == (1, True)


def test_what_was_not_done_or_said_is_no_success(store: Path) -> None:
    """Of `purge` nothing is done by then, and of `verify` nobody knows the answer."""
    purge = ("purge", "--model=test/model", "--yes")
    for command in (purge, ("verify",), ("doctor",)):
        assert into_a_pipe_of_nobody(*command, str(store)) == (141, "")
    assert len(list(StoredChunks(store))) == 8
    assert into_a_pipe_of_nobody("info", str(store)) == (0, "")
    assert shell(f"{KVRING} info $1/none 2> >(true)", store)[0] in (1, 141)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_one_is_no_plural(count: int) -> None:
    expected = {0: "0 chunks", 1: "1 chunk", 2: "2 chunks", 1000: "1,000 chunks"}[count]
    assert count_text(count, "chunk") == expected
    assert count_text(count, "is", "are").endswith(" is") == (count == 1)


def test_columns_bound_the_width_of_what_goes_into_a_pipe() -> None:
    def widest(environment: dict[str, str]) -> int:
        command = [sys.executable, "-m", "kvring", "doctor"]
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        return max(map(len, ended.stdout.splitlines()))

    without = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    assert widest({**without, "COLUMNS": "90"}) <= 90 < widest(without)
