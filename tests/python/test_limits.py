"""What a store does where the system limits it: threads, descriptors, address space, files."""

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import MIB, Client, pattern, run_child

GIB = 1 << 30

# Nobody's: its threads are those of the test.
USER_ID = 54321


def open_files() -> list[str]:
    """Return what this process has open."""
    files = Path("/proc/self/fd").iterdir()
    # Not the list itself.
    return sorted(f"{file.name} {file.readlink()}" for file in files if file.is_symlink())


def open_with_few_threads(threads: int, engine: str, *paths: str) -> None:
    """Open a store as a user who may have so many threads beside the first one."""
    os.setuid(USER_ID)
    resource.setrlimit(resource.RLIMIT_NPROC, (1 + threads, 1 + threads))
    try:
        connector = kvring.Connector(paths, "32MiB", engine=engine)
    except OSError as error:
        print(type(error).__name__, error)
        before = open_files()
        with suppress(OSError):
            kvring.Connector(paths, "32MiB", engine=engine)
        assert open_files() == before
    else:
        Client(connector).store({"key": pattern(4096, 1)})
        connector.close()
        print("stored")


@pytest.mark.skipif(os.geteuid() != 0, reason="threads of others would count: it takes root")
@pytest.mark.parametrize("paths", [1, 3])
@pytest.mark.parametrize("engine", ["io_uring", "posix"])
def test_an_open_that_gets_no_thread_raises_an_os_error(
    public_directory: Path, engine: str, paths: int
) -> None:
    directories = [public_directory / str(number) for number in range(paths)]
    for directory in directories:
        directory.mkdir()
        os.chown(directory, USER_ID, -1)
    outcomes = []
    for threads in [0, 1, 3, 8, 300]:
        ended = run_child(open_with_few_threads, threads, engine, *map(str, directories))
        assert ended.returncode == 0, f"{threads} threads: {ended.stderr}"
        # Some of the reactors are enough.
        logged = ended.stderr.splitlines()
        assert all("go on without a further one" in line for line in logged), ended.stderr
        outcomes.append(ended.stdout.strip())
        if outcomes[-1] != "stored":
            assert not list(public_directory.glob("*/data-*")), "it was refused"
    assert outcomes[-1] == "stored"
    refusals = [outcome for outcome in outcomes if outcome != "stored"]
    assert outcomes[: len(refusals)] == refusals
    assert refusals
    for refusal in refusals:
        assert refusal.startswith("BlockingIOError "), refusal
        assert "thread" in refusal, refusal


def store_with_short_files(directory: str, layout: str) -> None:
    """Store chunks that a limit on the length of files does not let through, then without it."""
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, unlimited))
    with kvring.Connector(directory, "32MiB", layout=layout) as connector:
        client = Client(connector)
        completion = client.set(["key"], [pattern(MIB, 1)])
        print(completion.results, completion.error)
        assert client.load("key", MIB) is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    with kvring.Connector(directory, "32MiB", layout=layout) as connector:
        client = Client(connector)
        client.store({"key": pattern(MIB, 1)})
        assert client.load("key", MIB) == pattern(MIB, 1)
        client.assert_sound()


@pytest.mark.parametrize("layout", ["extents", "files"])
def test_a_limit_on_the_length_of_files_is_named(store_directory: Path, layout: str) -> None:
    """Its signal (SIGXFSZ) would end the process, but that Python ignores it."""
    ended = run_child(store_with_short_files, str(store_directory), layout)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("[False] store full: "), ended.stdout
    assert "File too large" in ended.stdout
    assert "ulimit -f, RLIMIT_FSIZE" in ended.stdout


def open_with_little_address_space(directory: str) -> None:
    """Open a store whose index takes more than is left, then one whose index does not."""
    taken_pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit_bytes = taken_pages * resource.getpagesize() + 6 * GIB
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    try:
        kvring.Connector(directory, 64 * GIB)
    except OSError as error:
        print(error.errno, f"{limit_bytes / GIB:.1f} GiB", error, sep="\n")
    with kvring.Connector(directory, GIB) as connector:
        Client(connector).store({"key": pattern(4096, 1)})
    print("stored")


def test_an_open_that_gets_no_address_space_says_how_much_and_why(store_directory: Path) -> None:
    ended = run_child(open_with_little_address_space, str(store_directory))
    assert (ended.returncode, ended.stderr) == (0, "")
    code, limit, told, outcome = ended.stdout.splitlines()
    assert (int(code), outcome) == (errno.ENOMEM, "stored")
    assert f"cannot map {store_directory}/index.kvring: " in told
    assert "the index reserves 8.0 GiB of address space for all that it can become" in told
    assert f"this process may have {limit} in all" in told
    assert "raise the limit on address space (ulimit -v, RLIMIT_AS), or lower capacity" in told
