"""register_memory(): what Python hands over, refusals of the system, forks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    CAPACITY_BYTES,
    ENGINE,
    HANG_DEADLINE_S,
    MIB,
    REPOSITORY,
    Client,
    make_memory,
    pattern,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def has_rings(connector: kvring.Connector) -> bool:
    return "io_uring" in connector.stats()["engine"]


def test_loads_and_stores_use_it_until_it_is_closed(client: Client) -> None:
    connector = client.connector
    memory = make_memory(MIB)
    wanted = MIB if has_rings(connector) else 0
    with connector.register_memory(memory) as registered:
        assert registered.registered_bytes == wanted
        assert connector.stats()["registered_bytes"] == wanted
        memory[:] = pattern(MIB, 1)
        assert client.set(["a"], [memory])[1]
        memory[:] = bytes(MIB)
        assert client.get(["a"], [memory])[3] == [True]
        assert memory == pattern(MIB, 1)
        fixed = connector.stats()["transfers_fixed"]
        assert (fixed > 0) == has_rings(connector)
    assert client.get(["a"], [memory])[3] == [True]
    assert connector.stats()["registered_bytes"] == 0
    assert connector.stats()["transfers_fixed"] == fixed
    registered.close()


def test_wrong_memory_is_refused(client: Client) -> None:
    register = client.connector.register_memory
    with pytest.raises(kvring.SubmitError, match="0 bytes"):
        register(bytearray())
    with pytest.raises(kvring.SubmitError, match="read-only"):
        register(b"abc")
    with pytest.raises(kvring.SubmitError, match="beyond the address space"):
        register(2**64 - 4096, 8192)
    with pytest.raises(TypeError, match="an address and length_bytes"):
        register(4096)
    memory = bytearray(MIB)
    with register(memory):
        if has_rings(client.connector):
            with pytest.raises(kvring.SubmitError, match="overlaps"):
                register(memory)
    client.connector.close()
    with pytest.raises(kvring.ClosedError):
        register(memory)


def test_a_fork_neither_registers_nor_unregisters(client: Client) -> None:
    memory = make_memory(MIB)
    registered = client.connector.register_memory(memory)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            registered.close()
            client.connector.register_memory(bytearray(MIB))
        except kvring.SubmitError as error:
            status = 0 if "not to its fork" in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.connector.stats()["registered_bytes"] == registered.registered_bytes
    assert client.set(["a"], [memory])[1]
    assert (client.stat("transfers_fixed") > 0) == has_rings(client.connector)
    registered.close()


LIMITED = """
import ctypes, logging, resource, sys
CAP_IPC_LOCK, CAP_SETPCAP = 14, 8
PR_CAPBSET_DROP = 24
import os
if len(sys.argv) == 3:
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) == 0
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
import kvring
memory = bytearray(64 << 20)
with kvring.Connector(sys.argv[1], 256 << 20, engine=sys.argv[2], io_threads=1) as connector:
    for _ in range(2):
        with connector.register_memory(memory) as registered:
            assert registered.registered_bytes == 0
            assert connector.stats()["registered_bytes"] == 0
    future = connector.submit_batch_set(["a"], [memory[:1 << 20]])
    answers = []
    while not answers:
        answers = connector.drain_completions()
    assert answers[0][1], answers
    with connector.register_memory(bytearray(1 << 20)) as registered:
        assert registered.registered_bytes == 1 << 20
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability of root")
@pytest.mark.skipif(ENGINE == "posix", reason="it has no rings")
def test_a_limit_on_pinned_memory_is_told_once(store_directory: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(store_directory), "io_uring"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=HANG_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "memory is not registered" in line]
    assert len(lines) == 1, done.stdout
    for part in (str(64 * MIB), "RLIMIT_MEMLOCK", str(8 * MIB), "ulimit -l", "CAP_IPC_LOCK"):
        assert part in lines[0]


def test_without_rings_it_is_told_how_to_have_them(
    store_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kvring.Connector(store_directory, CAPACITY_BYTES, engine="posix") as connector:
        with connector.register_memory(bytearray(MIB)) as registered:
            assert registered.registered_bytes == 0
        connector.stats()
    assert "set engine to 'io_uring'" in caplog.text
