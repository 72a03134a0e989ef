"""Engines: io_uring refused for real, wholly and in part, and threads in its place."""

import ctypes
import errno
import logging
import os
import resource
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

import kvring
from tests.python.conftest import CAPACITY_BYTES, Client, make_key, pattern, run_child

LINE = "%(name)s %(levelname)s %(message)s"
CHUNKS = {make_key(number): pattern(10_000 * number + 1, number) for number in range(1, 100, 7)}

SETUP, ENTER, REGISTER = 425, 426, 427
REGISTER_PROBE = 8

ALLOW = "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile"
POSIX = "posix (36 threads)"


class Refused(NamedTuple):
    """A system call that a filter answers instead of the kernel: all of them, or one operation."""

    call: int
    errno: int
    operation: int | None = None


DENIED_BY_DOCKER = [Refused(call, errno.EPERM) for call in (SETUP, ENTER, REGISTER)]


def install_filter(refused: list[Refused]) -> None:
    """Let seccomp refuse system calls of this thread, and of those that it starts from here on."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    number_offset, operation_offset = 0, 24
    allow, refuse = 0x7FFF0000, 0x00050000
    program = []
    for call, number, operation in refused:
        test = [(load, 0, 0, number_offset), (jump_if_equal, 0, 1, call)]
        if operation is not None:
            test[1] = (jump_if_equal, 0, 3, call)
            test += [(load, 0, 0, operation_offset), (jump_if_equal, 0, 1, operation)]
        program += [*test, (answer, 0, 0, refuse | number)]
    program.append((answer, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    )
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in ((set_no_new_privileges, 1, 0), (set_seccomp, filter_mode, header)):
        status = prctl(*arguments, 0, 0)
        assert status == 0, os.strerror(ctypes.get_errno())


def use(directory: str, **options: object) -> str:
    """Store and load through a connector and through its successor; return the engine's name."""
    with kvring.Connector(directory, CAPACITY_BYTES, **options) as connector:
        client = Client(connector)
        client.store(CHUNKS)
        client.delete([make_key(1)])
        held = {key: chunk for key, chunk in CHUNKS.items() if key != make_key(1)}
        assert all(client.load(key, len(chunk)) == chunk for key, chunk in held.items())
        client.assert_sound()
        engine = str(connector.stats()["engine"])
    logging.getLogger("kvring").setLevel(logging.ERROR)
    with kvring.Connector(directory, CAPACITY_BYTES, **options) as connector:
        client = Client(connector)
        assert all(client.load(key, len(chunk)) == chunk for key, chunk in held.items())
    return engine


def use_refused(directory: str, refused: list[tuple[int, int, int | None]], options: str) -> None:
    logging.basicConfig(level=logging.WARNING, format=LINE)
    install_filter([Refused(*one) for one in refused])
    print(use(directory, **dict(one.split("=") for one in options.split())))


def run_refused(directory: Path, refused: list[Refused], options: str = "") -> tuple[str, str]:
    """Use a store where system calls are refused; return the engine's name and what is logged."""
    plain = [tuple(one) for one in refused]
    child = run_child(use_refused, str(directory), plain, options)
    assert child.returncode == 0, child.stderr
    return child.stdout.rstrip("\n"), child.stderr


def assert_one_warning(log: str, *parts: str) -> None:
    """Check that this is one warning, of threads in the place of io_uring, with these parts."""
    assert log.count("\n") == 1, log
    assert log.startswith("kvring WARNING "), log
    for part in ("threads take the place of io_uring", "or set engine to 'posix'", *parts):
        assert part in log, (part, log)


@pytest.mark.parametrize(
    ("refused", "parts"),
    [
        (DENIED_BY_DOCKER, ("a seccomp filter denies it, as Docker's", "io_uring_setup:", ALLOW)),
        ([Refused(ENTER, errno.EPERM)], ("a seccomp filter denies", "io_uring_enter:", ALLOW)),
        (
            [Refused(SETUP, errno.ENOSYS)],
            (f"a seccomp filter hides what Linux {os.uname().release} has", ALLOW),
        ),
        ([Refused(SETUP, errno.ENOMEM)], ("no memory for rings", "lower io_threads")),
        ([Refused(SETUP, errno.EMFILE)], ("no descriptor is left", "RLIMIT_NOFILE")),
    ],
    ids=["docker", "enter", "hidden", "memory", "descriptors"],
)
def test_threads_take_the_place_of_a_refused_ring(
    store_directory: Path, refused: list[Refused], parts: tuple[str, ...]
) -> None:
    engine, log = run_refused(store_directory, refused)
    assert engine == POSIX
    assert_one_warning(log, str(store_directory), *parts)


@pytest.mark.parametrize("durability", ["best_effort", "persistent"])
def test_engine_posix_has_nothing_to_warn_of(store_directory: Path, durability: str) -> None:
    options = f"engine=posix durability={durability}"
    assert run_refused(store_directory, DENIED_BY_DOCKER, options) == (POSIX, "")


def open_refused(directory: str) -> None:
    install_filter(DENIED_BY_DOCKER)
    try:
        kvring.Connector(directory, CAPACITY_BYTES, engine="io_uring")
    except kvring.EngineError as error:
        print(error)
    assert not Path(directory).exists()
    # It is not held by the one that failed.
    print(use(directory, engine="posix"))


def test_engine_io_uring_fails_where_it_is_refused(store_directory: Path) -> None:
    child = run_child(open_refused, str(store_directory))
    assert child.returncode == 0, child.stderr
    message, engine = child.stdout.splitlines()
    assert message.startswith("io_uring is not available: a seccomp filter denies it"), message
    assert ALLOW in message
    assert message.endswith("or let engine be 'auto' or 'posix'")
    assert engine == POSIX


@pytest.mark.parametrize(
    "refused",
    [[Refused(REGISTER, errno.EINVAL, REGISTER_PROBE)], [Refused(REGISTER, errno.EPERM)]],
    ids=["probing", "all registering"],
)
def test_what_a_ring_can_do_without_is_no_refusal(
    store_directory: Path, refused: list[Refused]
) -> None:
    """As kernels before 5.6 refuse it, or a filter."""
    engine, log = run_refused(store_directory, refused)
    assert engine.startswith("io_uring (")
    assert log == ""


def use_without_locked_memory(directory: str) -> None:
    logging.basicConfig(level=logging.WARNING, format=LINE)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    # No capability: CAP_IPC_LOCK would lift the limit.
    version_3 = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.capset(version_3, ctypes.create_string_buffer(bytes(24)))
    assert status == 0, os.strerror(ctypes.get_errno())
    assert "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text(encoding="utf-8")
    print(use(directory))


def test_without_locked_memory_it_works_and_tells_how(store_directory: Path) -> None:
    """Many kernels charge rings to the limit: those before 5.12, and new ones."""
    child = run_child(use_without_locked_memory, str(store_directory))
    assert child.returncode == 0, child.stderr
    if child.stdout.startswith("io_uring ("):
        assert child.stderr == ""
    else:
        assert child.stdout == f"{POSIX}\n"
        assert_one_warning(child.stderr, "RLIMIT_MEMLOCK: 0 bytes", "ulimit -l")
