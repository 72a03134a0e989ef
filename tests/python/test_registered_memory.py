"""register_memory(): what Python hands over, refusals of the system, forks."""

import os

import pytest

import kvring
from tests.python.conftest import MIB, Client, make_memory, pattern

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
