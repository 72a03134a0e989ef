"""The right KV: what a chunk means beyond its key, under the real StorageManager."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj

from kvring import set_epoch
from kvring.cli import main
from kvring.lmcache.adapter import KvringL2Adapter
from tests.python.conftest import until
from tests.python.lmcache.adapter_driver import AdapterDriver, make_key
from tests.python.lmcache.shared_tiers import MakeNode
from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.caches import CacheSession

pytestmark = pytest.mark.lmcache

L1_BYTES = 64 << 20
COUNT = 4
SHAPE = [2, 4, 16, 256]


def layout(dtype: torch.dtype, shape: list[int] = SHAPE) -> MemoryLayoutDesc:
    return MemoryLayoutDesc(shapes=[torch.Size(shape)], dtypes=[dtype])


BF16 = layout(torch.bfloat16)


@pytest.fixture
def adapter_name() -> str:
    """The one adapter that is told of layouts."""
    return "plugin"


def keys_of(model: str = "test/model") -> list[ObjectKey]:
    return [make_key(number, model) for number in range(COUNT)]


def store(spec: AdapterSpec, form: MemoryLayoutDesc, keys: list[ObjectKey]) -> None:
    with CacheSession(spec, L1_BYTES) as session:
        with session.write(keys, form) as tensors:
            for number, tensor in enumerate(tensors):
                tensor.fill_(number)
        session.wait_until_stored(len(keys))


def found(spec: AdapterSpec, form: MemoryLayoutDesc, keys: list[ObjectKey]) -> int:
    with CacheSession(spec, L1_BYTES) as session:
        return sum(session.prefetch(keys, form))


@contextmanager
def plugin(path: Path, **options: Any) -> Iterator[KvringL2Adapter]:
    """Open an adapter as LMCache's server does."""
    adapter = KvringL2Adapter({"path": str(path), "capacity": "64MiB", **options})
    try:
        yield adapter
    finally:
        adapter.close()


def submit(adapter: KvringL2Adapter, keys: list[ObjectKey]) -> list[Any]:
    """Begin to store memory objects of BF16; return them, as they must stay until that is done."""
    (shape,), (dtype,) = BF16.shapes, BF16.dtypes
    size_bytes = shape.numel() * dtype.itemsize
    objects = [
        TensorMemoryObj(
            torch.ones(size_bytes, dtype=torch.uint8),
            MemoryObjMetadata(shape, dtype, 0, size_bytes, 1, shapes=[shape], dtypes=[dtype]),
            None,
        )
        for _ in keys
    ]
    adapter.submit_store_task(keys, objects)
    return objects


def lookup(adapter: KvringL2Adapter, keys: list[ObjectKey], form: MemoryLayoutDesc = BF16) -> int:
    """Return how many of the keys a lookup finds."""
    task = adapter.submit_lookup_and_lock_task(keys, {0: form})
    bitmaps: list[Any] = []

    def is_there() -> bool:
        bitmaps.append(adapter.query_lookup_and_lock_result(task))
        return bitmaps[-1] is not None

    until("the lookup", is_there)
    return sum(bitmaps[-1].test(number) for number in range(COUNT))


@pytest.mark.parametrize(
    "other",
    [
        layout(torch.float16),
        layout(torch.bfloat16, [2, 4, 32, 128]),
        layout(torch.uint8, [2, 4, 16, 512]),
    ],
    ids=["another dtype", "another shape", "bytes"],
)
def test_other_representations_of_equal_length_are_misses(
    make_spec: Callable[..., AdapterSpec],
    other: MemoryLayoutDesc,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = keys_of()
    store(make_spec(), BF16, keys)
    with caplog.at_level(logging.WARNING, logger="kvring"):
        with CacheSession(make_spec(), L1_BYTES) as session:
            assert not any(session.prefetch(keys, other))
            ((_, adapter),) = session.manager.l2_adapters()
            assert adapter._store.stats()["other_variant"] == COUNT
        told = [record for record in caplog.records if "with another dtype" in record.message]
        assert len(told) == 1, "once, not for each chunk"
    assert found(make_spec(), BF16, keys) == COUNT
    two_groups = MemoryLayoutDesc([torch.Size([1, *SHAPE[1:]])] * 2, [torch.bfloat16] * 2)
    assert found(make_spec(), two_groups, keys) == 0
    store(make_spec(), other, keys)
    assert (found(make_spec(), other, keys), found(make_spec(), BF16, keys)) == (COUNT, 0)


def test_other_weights_are_misses(make_spec: Callable[..., AdapterSpec], tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(bytes(1 << 20))
    keys = keys_of(str(model))
    store(make_spec(), BF16, keys)
    assert found(make_spec(), BF16, keys) == COUNT
    os.utime(weights, (1, 1))
    assert found(make_spec(), BF16, keys) == 0


def test_weights_that_change_below_a_server_have_nothing_until_an_epoch_begins(
    data_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("kvring.lmcache.known_weights._LOOK_S", 0.01)
    weights = tmp_path / "model.gguf"
    weights.write_bytes(bytes(1 << 20))
    keys = keys_of(str(weights))
    with plugin(data_directory / "store") as adapter:
        held = submit(adapter, keys)
        until("they are stored", lambda: bool(held) and lookup(adapter, keys) == COUNT)
        os.utime(weights, (1, 1))
        until("that is seen", lambda: lookup(adapter, keys) == 0)
        assert f"the weights of {weights} have changed" in caplog.text
        before = adapter._store.stats()["set_stored"]
        adapter.pop_completed_store_tasks()
        # Of an engine that has the older ones, or of one that has the newer ones.
        held = submit(adapter, keys)
        until("that is over", lambda: bool(adapter.pop_completed_store_tasks()))
        assert lookup(adapter, keys) == 0
        assert adapter._store.stats()["set_stored"] == before
        adapter._store.set_epoch("newer")
        held = submit(adapter, keys)
        until("they are stored", lambda: bool(held) and lookup(adapter, keys) == COUNT)


def test_an_epoch_hides_chunks_of_an_identity_from_lookups(data_directory: Path) -> None:
    keys = keys_of()
    with plugin(data_directory / "store", identity="fp8") as adapter:
        held = submit(adapter, keys)
        until("they are stored", lambda: bool(held) and lookup(adapter, keys) == COUNT)
        adapter._store.set_epoch("step 1")
        assert lookup(adapter, keys) == 0
        assert lookup(adapter, keys, layout(torch.float16)) == 0
        adapter._store.set_epoch("")
        assert lookup(adapter, keys) == COUNT
        assert lookup(adapter, keys, layout(torch.float16)) == 0


@pytest.mark.parametrize("has_identity", [True, False])
def test_bytes_of_a_serde_are_found_by_their_identity(
    make_spec: Callable[..., AdapterSpec], *, has_identity: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def spec(dtype: str) -> AdapterSpec:
        options = {"identity": dtype} if has_identity else {}
        return {**make_spec(**options), "serde": {"type": "fp8", "fp8_dtype": dtype}}

    keys = keys_of()
    with caplog.at_level(logging.WARNING, logger="kvring"):
        store(spec("float8_e4m3fn"), BF16, keys)
    assert ("two serdes cannot be told apart" in caplog.text) != has_identity
    assert found(spec("float8_e5m2"), BF16, keys) == 0
    assert found(spec("float8_e4m3fn"), BF16, keys) == (COUNT if has_identity else 0)


def test_callers_that_tell_nothing_get_their_own(data_directory: Path) -> None:
    path = data_directory / "store"
    keys = keys_of()
    told, untold = adapter_spec("plugin", path), adapter_spec("native_plugin", path)
    store(untold, BF16, keys)
    assert (found(told, BF16, keys), found(untold, BF16, keys)) == (0, COUNT)
    store(told, BF16, keys)
    assert (found(told, BF16, keys), found(untold, BF16, keys)) == (COUNT, 0)


def test_an_epoch_from_outside_hides_older_chunks(
    make_spec: Callable[..., AdapterSpec], data_directory: Path
) -> None:
    keys, path = keys_of(), data_directory / "store"
    store(make_spec(), BF16, keys)
    with CacheSession(make_spec(), L1_BYTES) as session:
        set_epoch(path, "step 1")
        assert not any(session.prefetch(keys, BF16))
        set_epoch(path, "")
        assert all(session.prefetch(keys, BF16))
    with pytest.raises(Exception, match="nobody has a store open there"):
        set_epoch(path, "step 2")


def test_a_model_is_purged_whoever_stored_it(
    make_spec: Callable[..., AdapterSpec],
    data_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(data_directory / "store")
    store(make_spec(identity="fp8"), BF16, keys_of("one"))
    store(make_spec(), BF16, keys_of("one"))
    driver = AdapterDriver(make_spec())
    assert driver.store([make_key(1, "one", "tenant"), make_key(1, "two")], [b"x"] * 2)
    assert main(["purge", path, "--model", "one", "--yes"]) == 0
    out = capsys.readouterr().out
    assert all(f"{one!r} has" in out for one in ("fp8#one", "one", "one@tenant"))
    assert driver.lookup([make_key(1, "one"), make_key(1, "two")]) == [False, True]
    driver.close()
    assert main(["purge", path, "--model", "one", "--yes"]) == 1
    assert "has no model 'one'; there are 'two'" in capsys.readouterr().err
    for wrong in (["--model", "one", "--namespace", "one"], []):
        assert main(["purge", path, "--yes", *wrong]) == 2
        assert "say one of --namespace and --model" in capsys.readouterr().err


def test_archives_keep_what_chunks_are(
    make_spec: Callable[..., AdapterSpec], data_directory: Path, tmp_path: Path
) -> None:
    keys, archive = keys_of(), str(tmp_path / "archive")
    store(make_spec(), BF16, keys)
    assert main(["export", str(data_directory / "store"), "--output", archive]) == 0
    other = data_directory / "other"
    assert main(["import", str(other), "--input", archive, "--capacity=64MiB"]) == 0
    spec = adapter_spec("plugin", other, "64MiB")
    assert found(spec, layout(torch.float16), keys) == 0
    assert found(spec, BF16, keys) == COUNT


def test_a_shared_tier_tells_representations_apart(make_node: MakeNode) -> None:
    keys = keys_of()
    first = make_node("first")
    held = submit(first.adapter, keys)
    until("it is shared", lambda: bool(held) and first.tier["stores"] == COUNT)
    second = make_node("second")
    assert lookup(second.adapter, keys, layout(torch.float16)) == 0
    # The weights have changed under the same name.
    second.adapter._store.set_epoch("step 1")
    assert lookup(second.adapter, keys) == 0
    second.adapter._store.set_epoch("")
    assert lookup(second.adapter, keys) == COUNT
