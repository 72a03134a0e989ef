"""SIGBUS, which a page of the index that cannot be read raises: others want that signal too."""

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY

OPEN = """
import faulthandler, mmap, os, signal, sys
import kvring
from tests.python.conftest import Client, pattern

trace = open(sys.argv[1] + "/trace", "w")
if "before" in sys.argv:
    faulthandler.enable(trace)
client = Client(kvring.Connector(sys.argv[1], "32MiB"))
client.store({str(number): pattern(4096, number) for number in range(200)})
if "after" in sys.argv:
    faulthandler.enable(trace)
"""

# Behind the end of its file a mapped page is as good as unreadable.
LOSE_THE_INDEX = """
os.truncate(os.path.join(sys.argv[1], "index.kvring"), 4096)
client.connector.submit_batch_exists([str(number) for number in range(200)])
client.connector.submit_batch_delete([str(number) for number in range(100)])
client.connector.submit_batch_get(["150"], [bytearray(4096)])
assert client.connector.stats()["index_pages_lost"] > 0
print("lives")
"""

FAULT_ELSEWHERE = """
with open(sys.argv[1] + "/elsewhere", "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    memory[0]
print("lives")
"""

SENT = """
print("ready", flush=True)
while True:
    signal.pause()
"""

HANDLERS = pytest.mark.parametrize("faulthandler", ["none", "before", "after"])


@contextmanager
def started(store: Path, script: str, faulthandler: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process with a store, which does not outlive the test."""
    command = [sys.executable, "-c", textwrap.dedent(OPEN + script), str(store), faulthandler]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@HANDLERS
def test_a_lost_page_of_the_index_ends_no_process(tmp_path: Path, faulthandler: str) -> None:
    with started(tmp_path, LOSE_THE_INDEX, faulthandler) as process:
        output, _ = process.communicate(timeout=HANG_DEADLINE_S)
    assert (process.returncode, output) == (0, "lives\n")


@HANDLERS
def test_a_fault_in_memory_of_others_ends_the_process_as_without_kvring(
    tmp_path: Path, faulthandler: str
) -> None:
    with started(tmp_path, FAULT_ELSEWHERE, faulthandler) as process:
        output, _ = process.communicate(timeout=HANG_DEADLINE_S)
    assert (process.returncode, output) == (-signal.SIGBUS, "")


@HANDLERS
def test_the_signal_from_another_process_ends_this_one(tmp_path: Path, faulthandler: str) -> None:
    with started(tmp_path, SENT, faulthandler) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGBUS)
        if faulthandler == "after":
            # What that handler sends on could have been a fault: the first one is let pass.
            wait_for(lambda: "Bus error" in (tmp_path / "trace").read_text())
            process.send_signal(signal.SIGBUS)
        process.communicate(timeout=HANG_DEADLINE_S)
    assert process.returncode == -signal.SIGBUS
