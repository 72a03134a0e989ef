"""Under vLLM's real manager: replicas, options, refusals, and the end."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.python.conftest import MIB

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

import kvring
from tests.python.engines.vllm_engine import (
    FEW,
    SMALL_BYTES,
    MakeEngine,
    kvring_tier,
    make_config,
    shared_memory,
)


def test_each_data_parallel_replica_has_its_own_store(
    make_engine: MakeEngine, store_path: Path
) -> None:
    tier = kvring_tier(store_path / "replica-{dp_rank}")
    engines = [make_engine([tier], dp_size=2, dp_index=index) for index in range(2)]
    for index, engine in enumerate(engines):
        engine.put([index])
        engine.evict()
    assert [engine.found([0, 1]) for engine in engines] == [[True, False], [False, True]]
    assert sorted(path.name for path in store_path.iterdir()) == ["replica-0", "replica-1"]
    # Several paths, each with a number of its own.
    paths = [str(store_path / f"{name}-{{dp_rank}}") for name in ("a", "b")]
    several = make_engine([{**kvring_tier(""), "path": paths}], dp_size=2, dp_index=1)
    stored = [one["path"] for one in several.store.stats()["paths"]]
    assert stored == [str(store_path / f"{name}-1") for name in ("a", "b")]


@pytest.mark.parametrize("is_list", [False, True], ids=["path", "list"])
@pytest.mark.parametrize(("dp_size", "dp_index"), [(2, 0), (2, 1), (1, 1)])
def test_replicas_do_not_share_a_path(
    make_engine: MakeEngine, store_path: Path, dp_size: int, dp_index: int, is_list: bool
) -> None:
    """Of a dense model each replica is told that it is the only one, and has a number."""
    tier = kvring_tier(store_path)
    if is_list:
        tier["path"] = [f"{store_path}-{{dp_rank}}", str(store_path)]
    with pytest.raises(ValueError, match=re.escape("{dp_rank}")) as raised:
        make_engine([tier], dp_size=dp_size, dp_index=dp_index)
    message = str(raised.value)
    assert "secondary_tiers" in message
    assert f"path = {str(store_path)!r}" in message
    assert f"such as {store_path}-{{dp_rank}}" in message
    assert not store_path.exists()


def test_replicas_have_metrics_ports_of_their_own(
    make_engine: MakeEngine, store_path: Path, port: int
) -> None:
    tier = kvring_tier(store_path / "{dp_rank}", metrics_port=port)
    engines = [make_engine([tier], dp_size=2, dp_index=index) for index in range(2)]
    assert [engine.store.metrics_port for engine in engines] == [port, port + 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evict": "lru"}, ["unknown option 'evict'", "eviction"]),
        ({"root_dir": "/tmp"}, ["unknown option 'root_dir'"]),
        ({"capacity": "1MiB"}, ["'capacity' = '1MiB'", "16 MiB"]),
        ({"capacity": "all"}, ["'capacity'"]),
        ({"capacity": None}, ["'capacity'"]),
        ({"path": 5}, ["'path' = 5"]),
        ({"path": []}, ["'path' = []"]),
        ({"eviction": "belady"}, ["'eviction' = 'belady'", "'lru'"]),
        ({"checksum": True}, ["'checksum' = "]),
        ({"identity": "a#b"}, ["'identity' = 'a#b'"]),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(
    make_engine: MakeEngine, store_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError, match="secondary_tiers") as raised:
        make_engine([kvring_tier(store_path) | options])
    message = str(raised.value)
    assert "kv_connector_extra_config" in message
    assert "'KvringTier'" in message
    assert all(word in message for word in words), message
    assert not (store_path / "index.kvring").exists()


def test_a_store_has_one_tier(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine()
    engine.put(FEW)
    with pytest.raises(kvring.InUseError, match="secondary_tiers") as raised:
        make_engine([kvring_tier(store_path.parent / "fine"), kvring_tier(store_path)])
    assert str(store_path) in str(raised.value)
    # The one that was made before it was let go of.
    make_engine([kvring_tier(store_path.parent / "fine")])
    engine.evict()
    assert engine.found(FEW) == [True] * len(FEW)


def test_a_row_that_is_longer_than_the_store_takes_is_refused(
    make_engine: MakeEngine, store_path: Path
) -> None:
    row_bytes = 65 * MIB
    with pytest.raises(ValueError, match="secondary_tiers") as raised:
        make_engine([kvring_tier(store_path, "512MiB")], rows=1, row_bytes=row_bytes)
    message = str(raised.value)
    assert f"a chunk has {row_bytes} bytes" in message
    assert f"has {64 * MIB}" in message
    assert "raise 'capacity'" in message
    assert "block_size" in message
    # The store was let go of.
    make_engine([kvring_tier(store_path, "512MiB")])


@pytest.mark.parametrize("options", [{"evict": "lru"}, {}], ids=["option", "row"])
def test_a_refusal_leaves_no_memory_behind(
    store_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    """Nobody holds a buffer of it, with which vLLM would leave the memory mapped."""
    tier = kvring_tier(store_path, SMALL_BYTES, **options)
    config = make_config([tier], rows=1, row_bytes=65 * MIB)
    memory = shared_memory(config.engine_id)
    with pytest.raises(ValueError, match="secondary_tiers"):
        TieringOffloadingSpec(config).get_manager()
    assert not memory.exists()
    assert str(memory) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_drive_that_does_not_answer_keeps_the_memory_mapped(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    close = engine.store.close
    left = {"shutdown_clean": False, "abandoned": 0, "memory_held": True}
    with monkeypatch.context() as patch:
        patch.setattr("kvring.connector.Connector.close", lambda connector: left)
        with pytest.raises(RuntimeError, match="does not answer"):
            engine.shutdown()
    assert shared_memory(engine.engine_id).exists()
    close()


def test_a_shutdown_leaves_nothing_behind(make_engine: MakeEngine, store_path: Path) -> None:
    engine = make_engine(rows=32, row_bytes=MIB)
    memory = shared_memory(engine.engine_id)
    assert memory.exists()
    with engine.request() as request:
        engine.offer(request, range(16))
    engine.shutdown()
    assert not memory.exists()
    assert str(memory) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    engine.tier.shutdown()
    engine.tier.shutdown()
    # Closed in order: all that was queued is there.
    engine = make_engine(rows=32, row_bytes=MIB)
    assert engine.store.recovery["clean_shutdown"]
    assert engine.found(range(16)) == [True] * 16
