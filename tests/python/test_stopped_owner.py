"""An owner that is stopped (SIGSTOP): commands say so, readers read on, and nothing is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvring
from kvring.cli import main
from kvring.owner_requests import ask
from tests.python.conftest import CAPACITY_BYTES, MIB, Client, make_key, pattern

Start = Callable[..., "subprocess.Popen[str]"]


def hold(directory: str) -> None:
    """Store a chunk, and keep the store open until the end of the input."""
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        Client(connector).store({make_key(1, "tenant"): pattern(MIB, 1)})
        print("ready", flush=True)
        sys.stdin.read()


@contextmanager
def stopped(process_id: int) -> Iterator[None]:
    """Stop a child of this process for a while."""
    os.kill(process_id, signal.SIGSTOP)
    os.waitpid(process_id, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


def test_a_stopped_owner_is_named_and_the_store_read(
    store_directory: Path, start_child: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(store_directory)
    owner = start_child(hold, path)
    with stopped(owner.pid):
        for arguments in (
            ["stats", path],
            ["top", path, "--count=1", "--interval=0.1"],
            ["purge", path, "--namespace=test/model@tenant", "--yes"],
        ):
            assert main(arguments) == 1
            said = capsys.readouterr().err
            assert f"process {owner.pid}, which has {path} open, is stopped (SIGSTOP" in said
            assert f"kill -CONT {owner.pid}" in said
        with pytest.raises(kvring.InUseError, match=f"process {owner.pid} .*which is stopped"):
            kvring.Connector(path, CAPACITY_BYTES)
        # What only reads needs no owner.
        archive = str(tmp_path / "archive.tar")
        for arguments in (
            ["info", path],
            ["ls", path],
            ["usage", path],
            ["verify", path],
            ["export", path, "--output", archive],
        ):
            assert main(arguments) == 0, arguments
    assert ask(store_directory, None, {"ask": "stats"})["process_id"] == owner.pid
    owner.communicate("")
    assert owner.returncode == 0
    with kvring.Connector(path, CAPACITY_BYTES) as connector:
        # The purge that was refused is not done later.
        assert Client(connector).load(make_key(1, "tenant"), MIB) == pattern(MIB, 1)
