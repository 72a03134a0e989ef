"""kvring.open(): the store of programs that wait for each answer, and its errors."""

import ctypes
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    CAPACITY_BYTES,
    ENGINE,
    HANG_DEADLINE_S,
    LAYOUT,
    MIB,
    is_exported,
    make_key,
    make_memory,
    pattern,
    until,
)
from tests.python.test_fork import run_fork

# Longer than any test: who waits so long hangs.
LONG_S = 3600.0


def open_store(directory: Path, capacity: int = CAPACITY_BYTES) -> kvring.Store:
    options: Any = {"engine": ENGINE, "layout": LAYOUT, "admit": "always"}
    return kvring.open(directory, capacity, **options)


def loaded(store: kvring.Store, key: str) -> bytes | None:
    chunk = store.get(key)
    return None if chunk is None else bytes(chunk)


def failure_of(call: Callable[[], object]) -> str:
    """Return what an exception of the package says, or what a call returned."""
    try:
        return str(call())
    except kvring.KvRingError as error:
        return f"{type(error).__name__} {error}"


@pytest.fixture
def store(store_directory: Path) -> Iterator[kvring.Store]:
    with open_store(store_directory) as opened:
        yield opened


def test_chunks_are_found_again_after_a_restart(store_directory: Path) -> None:
    chunks = {make_key(number): pattern(1000 * number, number) for number in range(1, 9)}
    with open_store(store_directory) as store:
        for key, chunk in chunks.items():
            store.put(key, chunk)
        store.delete(make_key(8))
        # Not there any more, and never.
        store.delete(make_key(8))
        store.delete(make_key(9))
    with open_store(store_directory) as store:
        expected = [*list(chunks.values())[:-1], None, None]
        assert store.get_many([*chunks, make_key(9)]) == expected
        assert [store.exists(make_key(number)) for number in (7, 8, 9)] == [True, False, False]


def test_each_key_counts_as_one_load(store: kvring.Store) -> None:
    store.put("stored", b"chunk")
    assert loaded(store, "stored") == b"chunk"
    assert store.get("missing") is None
    assert store.get_many(["missing", "stored"]) == [None, b"chunk"]
    stats = store.connector.stats()
    assert (stats["get_hits"], stats["get_misses"]) == (2, 2)


def test_a_chunk_of_another_epoch_is_a_miss(store: kvring.Store) -> None:
    store.put("key", b"chunk")
    store.connector.set_epoch("next")
    assert store.get("key") is None
    assert store.get("key", bytearray(9)) is None
    store.connector.set_epoch("")
    assert loaded(store, "key") == b"chunk"


def test_memory_of_the_caller_is_filled(store: kvring.Store) -> None:
    chunks = [pattern(length, length) for length in (1, 4096, 100_000)]
    for number, chunk in enumerate(chunks):
        store.put(str(number), memoryview(chunk))
    outs = [make_memory(len(chunk)) for chunk in chunks]
    for number, out in enumerate(outs):
        assert store.get(str(number), out) is out
    assert outs == chunks
    outs = [make_memory(len(chunk)) for chunk in chunks]
    missing = make_memory(5)
    assert store.get_many(["0", "1", "2", "3"], [*outs, missing]) == [*chunks, None]
    assert outs == chunks


def test_arrays_are_memory(store: kvring.Store) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1000, dtype=numpy.float16).reshape(10, 100)
    store.put("array", array)
    out = numpy.zeros_like(array)
    assert store.get("array", out) is out
    assert (out == array).all()
    with pytest.raises(kvring.ChunkError, match="the chunk has 2000 bytes, and out has 8000"):
        store.get("array", numpy.zeros(1000))


@pytest.mark.lmcache
def test_tensors_are_memory(store: kvring.Store) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1000).to(torch.bfloat16)
    store.put("tensor", tensor)
    out = torch.zeros_like(tensor)
    assert store.get("tensor", out) is out
    assert torch.equal(out, tensor)
    with pytest.raises(kvring.SubmitError, match="'tensor': buffer 0 is a tensor that is not"):
        store.put("tensor", tensor.reshape(10, 100).T)
    with pytest.raises(kvring.ChunkError, match="'tensor': the chunk has 2000 bytes, and out has"):
        store.get("tensor", torch.zeros(999))


REFUSALS: dict[str, tuple[Callable[[kvring.Store], object], type[Exception], str]] = {
    "long key": (
        lambda store: store.put("k" * 5000, b"x"),
        kvring.SubmitError,
        r"^'k{199}\.\.\.: key 0 has 5000 bytes",
    ),
    "no text": (lambda store: store.get(5), kvring.SubmitError, "^5: key 0 is of type int"),  # type: ignore[call-overload]
    "surrogate": (lambda store: store.exists("\ud800"), kvring.SubmitError, r"^'\\ud800': key 0"),
    "empty": (lambda store: store.put("key", b""), kvring.SubmitError, "^'key': buffer 0 has 0"),
    "no memory": (
        lambda store: store.put("key", 5),  # type: ignore[arg-type]
        kvring.SubmitError,
        "^'key': buffer 0 is of type int",
    ),
    "read-only": (
        lambda store: store.get("key", b"chunk"),
        kvring.SubmitError,
        "^'key': buffer 0 is read-only",
    ),
    "objects": (
        lambda store: store.get("key", (ctypes.py_object * 1)()),
        kvring.SubmitError,
        "^'key': its memory has references to objects",
    ),
    "the second one has objects": (
        lambda store: store.get_many(["a", "b"], [bytearray(8), (ctypes.py_object * 1)()]),  # type: ignore[type-var]
        kvring.SubmitError,
        "^'b': its memory has references to objects",
    ),
    "objects to store": (
        lambda store: store.put("key", (ctypes.py_object * 1)()),
        kvring.SubmitError,
        "^'key': its memory has references to objects",
    ),
    "the third key": (
        lambda store: store.get_many(["a", "b", "c" * 5000]),
        kvring.SubmitError,
        "^'ccc.*key 2 has 5000 bytes",
    ),
    "the second buffer": (
        lambda store: store.get_many(["a", "b"], [memoryview(bytearray(1)), memoryview(b"x")]),
        kvring.SubmitError,
        "^'b': buffer 1 is read-only",
    ),
    "counts": (
        lambda store: store.get_many(["a", "b"], [bytearray(1)]),
        kvring.SubmitError,
        "^2 keys but 1 buffers",
    ),
    "one text": (lambda store: store.get_many("ab"), kvring.SubmitError, "^keys is one str"),
    "length": (
        lambda store: store.get("key", bytearray(6)),
        kvring.ChunkError,
        "^'key': the chunk has 5 bytes, and out has 6; pass memory of 5 bytes",
    ),
    "too long": (
        lambda store: store.put("key", bytes(65 * MIB)),
        kvring.ChunkError,
        "^'key': not stored: .*68157440 bytes",
    ),
    "timeout": (
        lambda store: store.get("key", timeout_s=-1),
        kvring.ConfigError,
        "^timeout_s = -1 is not valid; it takes 0 to 3600",
    ),
    "no timeout": (
        lambda store: store.get("key", timeout_s=None),  # type: ignore[call-overload]
        kvring.ConfigError,
        "^timeout_s = None is not valid; it takes 0 to 3600",
    ),
    "no timeout of close": (
        lambda store: store.close(timeout_s=None),  # type: ignore[arg-type]
        kvring.ConfigError,
        "^timeout_s = None is not valid; it takes 0 to 3600",
    ),
    "no keys": (
        lambda store: store.get_many(None),  # type: ignore[call-overload]
        kvring.SubmitError,
        "^keys is of type NoneType; pass a list of str",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_names_the_key_and_harms_nothing(store: kvring.Store, name: str) -> None:
    store.put("key", b"chunk")
    call, kind, message = REFUSALS[name]
    with pytest.raises(kind, match=message):
        call(store)
    assert loaded(store, "key") == b"chunk"


def test_failures_are_exceptions_of_the_package(store: kvring.Store) -> None:
    with pytest.raises(kvring.KvRingError) as caught:
        store.put("key", bytes(65 * MIB))
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is kvring.ChunkError
    assert (error.key, error.code, str(error)) == ("key", "too_long", str(caught.value))
    late = pickle.loads(pickle.dumps(kvring.ChunkTimeoutError("key", None, "not stored")))
    assert isinstance(late, TimeoutError)
    assert str(late) == "'key': not stored"


def test_a_closed_store_says_so(store: kvring.Store) -> None:
    store.close()
    assert store.close()["shutdown_clean"]
    calls: list[Callable[[], object]] = [
        lambda: store.put("key", b"x"),
        lambda: store.get("key"),
        lambda: store.get("key", bytearray(1)),
        lambda: store.exists("key"),
        lambda: store.delete("key"),
    ]
    for call in calls:
        with pytest.raises(kvring.ClosedError, match=r"^'key': the connector is closed"):
            call()
    with pytest.raises(kvring.ClosedError, match=r"^the connector is closed"), store:
        pass


def test_a_chunk_that_is_replaced_meanwhile_by_a_longer_one_is_found(store: kvring.Store) -> None:
    """The length is looked up before the load, and is another one then."""
    calls = store._calls
    longer = [b"longer" * number for number in (3, 2, 1)]

    def lengths(keys: list[str]) -> list[int | None]:
        found = calls.lengths(keys)
        if longer:
            store.put("key", longer.pop())
        return found

    store.put("key", b"chunk")
    store._calls = SimpleNamespace(put=calls.put, get=calls.get, lengths=lengths)  # type: ignore[assignment]
    assert store.get_many(["key", "missing"]) == [b"longer" * 3, None]
    assert not longer


def test_threads_share_a_store(store: kvring.Store) -> None:
    def use(thread: int) -> int:
        wrong = 0
        for number in range(60):
            key, chunk = f"{thread} {number}", pattern(3000 + number, thread * 1000 + number)
            store.put(key, chunk)
            wrong += loaded(store, key) != chunk
            outs = [make_memory(len(chunk)), make_memory(1)]
            wrong += store.get_many([key, "missing"], outs) != [chunk, None]
            if number % 3 == 0:
                store.delete(key)
                wrong += store.exists(key)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(use, range(8))) == 0
    store.connector.check()


def test_close_ends_what_other_threads_wait_for(store: kvring.Store) -> None:
    begun = threading.Barrier(9)

    def use(thread: int) -> str:
        begun.wait(HANG_DEADLINE_S)
        try:
            while True:
                store.put(str(thread), pattern(MIB, thread), timeout_s=LONG_S)
                store.get(str(thread), timeout_s=LONG_S)
        except (kvring.ClosedError, kvring.ChunkError) as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        using = [pool.submit(use, thread) for thread in range(8)]
        begun.wait(HANG_DEADLINE_S)
        assert store.close()["timed_out"] is False
        for thread, one in enumerate(using):
            assert one.result(HANG_DEADLINE_S).startswith(f"'{thread}': ")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_is_refused_and_may_open_another_store(store: kvring.Store, tmp_path: Path) -> None:
    store.put("key", b"chunk")
    ended = threading.Event()

    def use() -> None:
        # Its locks may be held at the moment of a fork.
        while not ended.is_set():
            store.get("key")

    def refusals() -> str:
        calls: list[Callable[[], object]] = [
            lambda: store.put("key", b"x"),
            lambda: store.get("key"),
            lambda: store.exists("key"),
            lambda: store.delete("key"),
        ]
        told = {failure_of(call).partition(", not to its fork")[0] for call in calls}
        store.close()
        with open_store(tmp_path / f"own {os.getpid()}") as own:
            own.put("own", b"chunk")
            return f"{told} {own.get('own')}"

    with ThreadPoolExecutor() as pool:
        using = [pool.submit(use) for _ in range(3)]
        try:
            refusal = f"SubmitError 'key': the connector belongs to process {os.getpid()}"
            for _ in range(5):
                assert run_fork(refusals) == f"{ {refusal} } bytearray(b'chunk')"
        finally:
            ended.set()
        for one in using:
            one.result(HANG_DEADLINE_S)
    assert loaded(store, "key") == b"chunk"


def test_a_late_answer_is_an_error_and_its_memory_is_let_go(store: kvring.Store) -> None:
    chunk = bytearray(pattern(32 * MIB, 1))
    puts = [partial(store.put, str(number % 4), chunk, timeout_s=0) for number in range(20)]
    late = [failure_of(put) for put in puts]
    assert any("ChunkTimeoutError '0': not stored within 0 s; raise" in one for one in late)

    def is_let_go() -> bool:
        # Any call takes what has completed meanwhile.
        store.put("other", b"x")
        return not is_exported(chunk)

    until("the end of the stores", is_let_go)
    assert loaded(store, "0") == bytes(chunk)
