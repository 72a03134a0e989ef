"""Under vLLM's real manager: rows of any length, and only what fits a layout is found."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvring.cli import main
from tests.python.conftest import BLOCK_BYTES, MIB

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

from tests.python.engines.vllm_engine import (
    FEW,
    ROW_BYTES,
    MakeEngine,
    file_tier,
    kvring_tier,
    namespace_of,
    stored_by,
)
from tests.support.vllm_config import MODEL


@pytest.mark.parametrize(
    ("pages", "blocks_per_chunk", "tp_size"),
    [(1, 1, 1), (5, 1, 1), (33, 1, 1), (6, 3, 1), (7, 7, 1), (20, 5, 4)],
)
def test_rows_may_have_any_number_of_pages(
    make_engine: MakeEngine, pages: int, blocks_per_chunk: int, tp_size: int
) -> None:
    sizes = {"blocks_per_chunk": blocks_per_chunk, "tp_size": tp_size}
    engine = make_engine(row_bytes=pages * BLOCK_BYTES, **sizes)
    assert engine.row_bytes == pages * BLOCK_BYTES
    engine.put(range(20))
    engine.evict()
    assert engine.found(range(20)) == [True] * 20
    assert set(engine.store.usage()) == {namespace_of(engine)}


def test_a_row_may_be_longer_than_64_mib(make_engine: MakeEngine, store_path: Path) -> None:
    row_bytes = 65 * MIB + 3 * BLOCK_BYTES
    engine = make_engine([kvring_tier(store_path, "600MiB")], rows=2, row_bytes=row_bytes)
    engine.put([1, 2])
    engine.evict()
    assert engine.found([1, 2]) == [True, True]


OTHER_LAYOUTS = [
    {"model": "org/other"},
    {"dtype": "float16"},
    {"tokens_per_block": 32},
    {"blocks_per_chunk": 2},
    {"tp_size": 2},
    {"layers": ["layer.0"]},
    {"layers": ["layer.1", "layer.0"]},
    {"row_bytes": ROW_BYTES + BLOCK_BYTES},
    # What vLLM's file tier does not tell apart.
    {"kv_cache_layout": "NHD"},
    {"tp_size": 2, "is_portable": True},
    {"tp_size": 4, "is_portable": True},
]


@pytest.mark.parametrize("layout", OTHER_LAYOUTS, ids=str)
def test_a_wrong_layout_misses(
    make_engine: MakeEngine,
    store_path: Path,
    capsys: pytest.CaptureFixture[str],
    layout: dict[str, Any],
) -> None:
    base = {"is_portable": layout.get("is_portable", False)}
    engine = make_engine(**base)
    engine.put(FEW)
    namespaces = {namespace_of(engine)}
    engine.shutdown()
    other = make_engine(**layout)
    assert other.found(FEW) == [False] * len(FEW)
    other.put(FEW)
    other.evict()
    assert other.found(FEW) == [True] * len(FEW)
    namespaces.add(namespace_of(other))
    assert len(namespaces) == 2
    assert set(other.store.usage()) == namespaces
    capsys.readouterr()
    assert main(["usage", "--json", str(store_path)]) == 0
    assert set(json.loads(capsys.readouterr().out)["namespaces"]) == namespaces
    other.shutdown()
    assert make_engine(**base).found(FEW) == [True] * len(FEW)


def test_the_namespace_has_the_digest_of_vllms_own_file_tier(
    make_engine: MakeEngine, store_path: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    engine = make_engine([kvring_tier(store_path), file_tier(files)])
    engine.put(FEW)
    (directory,) = [path for path in files.iterdir() if (path / "config.json").exists()]
    digest = directory.name.rpartition("_")[2]
    (namespace,) = engine.store.usage()
    assert namespace.startswith(f"vllm-{digest}-")
    assert namespace.endswith(f"#{MODEL}")
    # It has one rank: the scheduler stores whole rows.
    keys, _ = engine.store.keys(namespace_of(engine))
    assert {key.split("@")[1] for key, _ in keys} == {"00000000"}


def test_the_option_identity_keeps_engines_apart(make_engine: MakeEngine, store_path: Path) -> None:
    namespaces = set()
    for identity in ("one", "two"):
        engine = make_engine([kvring_tier(store_path, identity=identity)], events=True)
        assert engine.found(FEW) == [False] * len(FEW)
        assert engine.events() == []
        engine.put(FEW)
        assert stored_by(engine.events()) == set(FEW)
        namespaces.add(namespace_of(engine))
        assert namespace_of(engine).startswith(f"{identity}#")
        assert set(engine.store.usage()) == namespaces
        engine.shutdown()
    engine = make_engine([kvring_tier(store_path, identity="one")], events=True)
    assert stored_by(engine.events()) == set(FEW)
    assert engine.found(FEW) == [True] * len(FEW)
