"""SIGBUS, which a page of the index that cannot be read raises: others want that signal too."""

import ctypes
import faulthandler
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import HANG_DEADLINE_S, REPOSITORY, Client, child_command, pattern, until

# Of <linux/mman.h> and <signal.h>; Python has no names for them.
MAP_FIXED_NOREPLACE = 0x100000
SA_SIGINFO = 4
SIGINFO_ADDRESS_OFFSET = 16


def open_store(path: str, handler_enabled: str) -> Client:
    """Fill a store; Python's own handler of SIGBUS is on `before` or `after` that, or never."""
    trace = (Path(path) / "trace").open("w", encoding="utf-8")
    if handler_enabled == "before":
        faulthandler.enable(trace)
    client = Client(kvring.Connector(path, "32MiB"))
    client.store({str(number): pattern(4096, number) for number in range(200)})
    if handler_enabled == "after":
        faulthandler.enable(trace)
    return client


def lose_the_index(path: str, handler_enabled: str) -> None:
    """Use an index whose pages are behind the end of its file, which is as if no disk read them."""
    client = open_store(path, handler_enabled)
    os.truncate(Path(path) / "index.kvring", 4096)
    client.connector.submit_batch_exists([str(number) for number in range(200)])
    client.connector.submit_batch_delete([str(number) for number in range(100)])
    client.connector.submit_batch_get(["150"], [bytearray(4096)])
    assert client.connector.stats()["index_pages_lost"] > 0
    print("lives")


def fault_elsewhere(path: str, handler_enabled: str) -> None:
    """Read memory of this process that is mapped and cannot be read."""
    client = open_store(path, handler_enabled)
    with (Path(path) / "elsewhere").open("w+b") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        print(memory[0], client)


class Action(ctypes.Structure):
    """struct sigaction of glibc."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def fault_where_somebody_asks_for_the_address(path: str, handler_enabled: str) -> None:
    """Read memory that cannot be read, with a handler from before that is told the address."""
    (Path(path) / "elsewhere").touch()
    with (Path(path) / "elsewhere").open("r+b") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        @ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        def handler(number: int, info: int, _context: int) -> None:
            found = ctypes.c_size_t.from_address(info + SIGINFO_ADDRESS_OFFSET).value
            os.write(1, f"{signal.Signals(number).name} {found == address}\n".encode())
            os._exit(0)

        action = Action(ctypes.cast(handler, ctypes.c_void_p), flags=SA_SIGINFO)
        ctypes.CDLL(None).sigaction(signal.SIGBUS, ctypes.byref(action), None)
        open_store(path, handler_enabled)
        file.truncate(0)
        print(memory[0])


def fault_in_a_fork(path: str, handler_enabled: str) -> None:
    """Read memory of a fork that cannot be read, at the address of its parent's index."""
    client = open_store(path, handler_enabled)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    address = next(int(line.split("-")[0], 16) for line in maps if line.endswith("/index.kvring"))
    with (Path(path) / "elsewhere").open("w+b") as file:
        file.truncate(4096)
        child = os.fork()
        if child == 0:
            libc = ctypes.CDLL(None)
            libc.mmap.argtypes = [
                ctypes.c_void_p,
                ctypes.c_size_t,
                *[ctypes.c_int] * 3,
                ctypes.c_long,
            ]
            libc.mmap.restype = ctypes.c_void_p
            flags = mmap.MAP_SHARED | MAP_FIXED_NOREPLACE
            mapped = libc.mmap(address, 4096, mmap.PROT_READ, flags, file.fileno(), 0)
            file.truncate(0)
            ctypes.string_at(address, 1)
            os._exit(3 if mapped == address else 4)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), len(client.connector.stats()) > 0)


def wait_for_signals(path: str, handler_enabled: str) -> None:
    """Say that the store is open, and wait."""
    _client = open_store(path, handler_enabled)
    print("ready", flush=True)
    while True:
        signal.pause()


HANDLERS = pytest.mark.parametrize("handler_enabled", ["none", "before", "after"])


@contextmanager
def started(
    store: Path, function: Callable[[str, str], None], handler_enabled: str
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process with a store, which does not outlive the test."""
    command = child_command(function, str(store), handler_enabled)
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@HANDLERS
def test_a_lost_page_of_the_index_ends_no_process(tmp_path: Path, handler_enabled: str) -> None:
    with started(tmp_path, lose_the_index, handler_enabled) as process:
        output, _ = process.communicate(timeout=HANG_DEADLINE_S)
    assert (process.returncode, output) == (0, "lives\n")


@HANDLERS
def test_a_fault_in_memory_of_others_ends_the_process_as_without_kvring(
    tmp_path: Path, handler_enabled: str
) -> None:
    with started(tmp_path, fault_elsewhere, handler_enabled) as process:
        output, _ = process.communicate(timeout=HANG_DEADLINE_S)
    assert (process.returncode, output) == (-signal.SIGBUS, "")


def test_a_handler_from_before_is_told_the_address(tmp_path: Path) -> None:
    with started(tmp_path, fault_where_somebody_asks_for_the_address, "none") as process:
        output, _ = process.communicate(timeout=HANG_DEADLINE_S)
    assert output == "SIGBUS True\n"


def test_a_fault_in_a_fork_ends_it_where_its_parent_has_an_index(tmp_path: Path) -> None:
    with started(tmp_path, fault_in_a_fork, "none") as process:
        output, _ = process.communicate(timeout=HANG_DEADLINE_S)
    assert output == f"{-signal.SIGBUS} True\n"


@HANDLERS
def test_the_signal_from_another_process_ends_this_one(
    tmp_path: Path, handler_enabled: str
) -> None:
    with started(tmp_path, wait_for_signals, handler_enabled) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGBUS)
        if handler_enabled == "after":
            # What that handler sends on could have been a fault: the first one is let pass.
            until("the fault", lambda: "Bus error" in (tmp_path / "trace").read_text())
            process.send_signal(signal.SIGBUS)
        process.communicate(timeout=HANG_DEADLINE_S)
    assert process.returncode == -signal.SIGBUS
