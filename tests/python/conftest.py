"""What the tests of the Python connector share: stores, clients, memory and child processes."""

import gc
import os
import random
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typing_extensions import Buffer

import kvring
from tests.python.guarded_memory import GuardedMemory
from tests.python.scheduling import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.support.block_devices import DeviceError, attach_loop, require

KIB = 1 << 10
MIB = 1 << 20
BLOCK_BYTES = 4096
CAPACITY_BYTES = 256 * MIB
SMALL_CAPACITY_BYTES = 32 * MIB

# What takes longer than this is a hang; nothing here takes more than seconds.
HANG_DEADLINE_S = 60.0

REPOSITORY = Path(__file__).parents[2]

# What moves the bytes in the stores of the fixtures.
ENGINE = os.environ.get("KVRING_TEST_ENGINE", "auto")

# What tests have on the disk at one time. The largest keeps a store of 1.4 GB on several nodes.
_TAKEN_BYTES = 4 << 30

# How chunks lie in them.
LAYOUT = os.environ.get("KVRING_TEST_LAYOUT", "extents")


def _skip_without_devices() -> Generator[None, object, object]:
    try:
        return (yield)
    except DeviceError as error:
        pytest.skip(str(error))


# A test for which a loop device or a mount cannot be made here is skipped with the reason.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Have what a fixture cannot make skip the test."""
    return (yield from _skip_without_devices())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Have what the test itself cannot make skip it."""
    return (yield from _skip_without_devices())


def pytest_sessionstart() -> None:
    """End a run whose stores could not grow, instead of some hundred tests that fail for it."""
    place = tempfile.gettempdir()
    usage = shutil.disk_usage(place)
    min_free_bytes = min(usage.total // 20, 10 << 30)
    if usage.free < min_free_bytes + _TAKEN_BYTES:
        pytest.exit(
            f"{place} has {usage.free >> 20} MiB free. The tests take {_TAKEN_BYTES >> 20} MiB, "
            f"and stores leave {min_free_bytes >> 20} MiB alone (min_free): free space there, or "
            "set TMPDIR to a directory on another disk",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_configure() -> None:
    """Have all descriptors that a process may: LMCache never lets go of those of a closed cache."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Completion(NamedTuple):
    """One tuple of drain_completions()."""

    future_id: int
    ok: bool
    error: str
    results: list[bool]


class Client:
    """A connector, and the completions that came while others were waited for."""

    def __init__(self, connector: kvring.Connector) -> None:
        """Take over a connector; nobody else may drain it."""
        self.connector = connector
        self._kept: dict[int, Completion] = {}
        self._all_ids: set[int] = set()

    def is_readable(self) -> bool:
        """Tell whether the event descriptor is readable now."""
        return is_readable(self.connector.event_fd(), 0)

    def wait_readable(self) -> None:
        """Wait until the event descriptor is readable, without draining."""
        assert is_readable(self.connector.event_fd(), HANG_DEADLINE_S), (
            f"it hangs: {self.connector.stats()}"
        )

    def collect(self) -> list[int]:
        """Drain once, keep what came, and return its future ids."""
        completions = [Completion(*one) for one in self.connector.drain_completions()]
        for completion in completions:
            assert completion.future_id not in self._all_ids, f"{completion} came twice"
            self._all_ids.add(completion.future_id)
            self._kept[completion.future_id] = completion
        return [completion.future_id for completion in completions]

    def wait(self, future_id: int) -> Completion:
        """Wait for the completion of one batch; keep those of others."""
        while future_id not in self._kept:
            self.wait_readable()
            self.collect()
        return self._kept.pop(future_id)

    def has(self, future_id: int) -> bool:
        """Tell whether the completion of a batch was collected."""
        return future_id in self._kept

    def wait_all(self, future_ids: Iterable[int]) -> list[Completion]:
        """Wait for the completions of several batches, and return them in the order asked for."""
        return [self.wait(future_id) for future_id in future_ids]

    def wait_codes(self, future_ids: Iterable[int]) -> dict[int, str | None]:
        """Wait for batches that are all there is under way, and return their failure codes."""
        left = set(future_ids)
        codes: dict[int, str | None] = {}
        while left:
            self.wait_readable()
            for future_id, code, error, _ in self.connector.drain_coded_completions():
                assert bool(error) == (code is not None)
                left.remove(future_id)
                codes[future_id] = code
        return codes

    def set(self, keys: list[str], buffers: Sequence[Buffer]) -> Completion:
        """Store chunks and wait."""
        return self.wait(self.connector.submit_batch_set(keys, list(buffers)))

    def get(self, keys: list[str], buffers: Sequence[Buffer]) -> Completion:
        """Load chunks and wait."""
        return self.wait(self.connector.submit_batch_get(keys, list(buffers)))

    def exists(self, keys: list[str]) -> list[bool]:
        """Ask for keys and wait."""
        completion = self.wait(self.connector.submit_batch_exists(keys))
        assert (completion.ok, completion.error) == (True, "")
        return completion.results

    def delete(self, keys: list[str]) -> list[bool]:
        """Remove keys and wait."""
        completion = self.wait(self.connector.submit_batch_delete(keys))
        assert (completion.ok, completion.error) == (True, "")
        return completion.results

    def store(self, chunks: dict[str, bytes]) -> None:
        """Store chunks as one batch, all of which must fit."""
        completion = self.set(list(chunks), list(chunks.values()))
        assert completion[1:] == (True, "", [True] * len(chunks))

    def load(self, key: str, length_bytes: int) -> bytes | None:
        """Return the chunk of a key, or None where there is none of this length."""
        memory = make_memory(length_bytes)
        completion = self.get([key], [memory])
        assert (completion.ok, completion.error) == (True, "")
        return bytes(memory) if completion.results == [True] else None

    def stat(self, name: str) -> int:
        """Return one number of stats()."""
        value = self.connector.stats()[name]
        assert type(value) is int
        return value

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait for what the store does by itself, in the background."""
        deadline_s = time.monotonic() + HANG_DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline_s, f"it does not come: {self.connector.stats()}"
            time.sleep(0.002)

    def assert_sound(self) -> None:
        """Compare everything that the store knows with everything else."""

        def fits() -> bool:
            check = self.connector.check()
            assert check["problems"] == []
            usage = self.connector.usage().values()
            return (0, check["keys"], check["stored_bytes"], check["stored_bytes"]) == (
                check["moving_bytes"],
                sum(one["keys"] or 0 for one in usage),
                sum(one["allocated_bytes"] or 0 for one in usage),
                self.stat("allocated_bytes"),
            )

        # Places go back a moment after the answer to a DELETE, and chunks expire meanwhile.
        self.wait_until(fits)


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for what comes by itself; `what` names it where it does not."""
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} does not come"
        time.sleep(0.01)


def pattern(length_bytes: int, seed: int) -> bytes:
    """Return bytes that differ for each seed and at each place."""
    return random.Random(seed).randbytes(length_bytes)


def make_key(number: int, salt: str = "") -> str:
    """Return a key in the form that LMCache gives it."""
    key = f"test/model@00000000@0@{number:064x}"
    return f"{key}@{salt}" if salt else key


def make_memory(length_bytes: int, shift_bytes: int = 0) -> memoryview:
    """Return zeroed memory between guards, `shift_bytes` behind the start of a page."""
    return GuardedMemory(length_bytes, shift_bytes).view


def filled_memory(content: bytes, shift_bytes: int = 0) -> memoryview:
    """Return memory that holds `content`, `shift_bytes` behind the start of a page."""
    memory = make_memory(len(content), shift_bytes)
    memory[:] = content
    return memory


def is_exported(memory: bytearray) -> bool:
    """Tell whether somebody holds a buffer of `memory`: it cannot be resized then."""
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False


class LoopDevice(NamedTuple):
    """A bare block device over a sparse file."""

    path: Path
    image: Path


@contextmanager
def bare_loop_device(
    directory: Path, size_bytes: int, block_bytes: int = 512
) -> Iterator[LoopDevice]:
    """Make a blank loop device with logical blocks of this length; skip where that cannot be."""
    image = directory / f"bare-{block_bytes}.image"
    with ExitStack() as stack:
        require("losetup")
        options = ("--sector-size", str(block_bytes))
        path = attach_loop(stack, image, size_bytes, *options, is_sparse=True)
        yield LoopDevice(path, image)


def child_command(function: Callable[..., None], *arguments: object) -> list[str]:
    """Return the command that calls a function of a test module in a new process."""
    # Some installed packages bring a package `tests` of their own, which would be found first.
    code = f"""
import sys, types
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [{str(REPOSITORY / "tests")!r}]
import {function.__module__} as module
module.{function.__name__}(*{arguments!r})
"""
    return [sys.executable, "-c", code]


def run_child(
    function: Callable[..., None], *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Call a function of a test module in a new process, and wait for its end."""
    return subprocess.run(
        child_command(function, *arguments),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_DEADLINE_S,
        check=False,
    )


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that ran in this process, and what they import, leave variables behind."""
    for name in ("COLUMNS", "LMCACHE_LOG_LEVEL", "VLLM_LOGGING_LEVEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for one store, gone as soon as the test is over: pytest would keep it."""
    directory = tmp_path / "store"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Make a directory that any user may enter; those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def open_client(store_directory: Path) -> Iterator[Callable[..., Client]]:
    """Open the test's store, closing whatever of it is still open at the end."""
    clients: list[Client] = []

    def build(capacity: int | str = CAPACITY_BYTES, **options: Any) -> Client:
        options = {"engine": ENGINE, "layout": LAYOUT, **options}
        clients.append(Client(kvring.Connector(store_directory, capacity, **options)))
        return clients[-1]

    yield build
    try:
        for client in clients:
            with suppress(kvring.ClosedError):
                client.assert_sound()
    finally:
        for client in clients:
            client.connector.close()
        clients.clear()
    gc.collect()


@pytest.fixture
def client(open_client: Callable[..., Client]) -> Client:
    """A client of an empty store."""
    return open_client()


@pytest.fixture
def start_child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Call functions of a test module in new processes, killed at the end of the test.

    Each must print a line once it is ready.
    """
    children: list[subprocess.Popen[str]] = []

    def start(function: Callable[..., None], *arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            child_command(function, *arguments),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert is_readable(child.stdout, HANG_DEADLINE_S), "the child hangs"
        line = child.stdout.readline()
        if line != "ready\n":
            child.kill()
            pytest.fail(f"the child says {line!r}, then {child.communicate()[1]}")
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def is_readable(file: Any, deadline_s: float) -> bool:
    """Wait until something can be read; return whether it can. Any number of files may be open."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(deadline_s * 1000))


@pytest.fixture
def port() -> int:
    """A port that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number
