"""Under which names pages are stored: no model and no layout gets those of another."""

import logging
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.runtime_context import RuntimeContext, get_context

from kvring._native import is_of_model
from kvring.sglang import settings
from kvring.weights import weights_of
from tests.python.engines.sglang_host import KEYS, OpenRank, kv_pool, mamba_pools, namespace_of
from tests.support.sglang_pools import MODEL

OTHERS: dict[str, dict[str, Any]] = {
    "model": {"model_name": "org/other"},
    "no model": {"model_name": None},
    "type": {"shape": {"dtype": torch.float16}},
    "narrow type": {"shape": {"dtype": torch.float8_e4m3fn}},
    "page size": {"shape": {"page_tokens": 8}},
    "layers": {"shape": {"layers": 2}},
    "width": {"shape": {"width": 16}},
    "tensor parallelism": {"tp_size": 2},
    "pipeline": {"pp_size": 2},
    "context": {"attn_cp_size": 2},
    "layout": {"layout": "page_first_direct"},
    "layers first": {"layout": "layer_first"},
    "attention": {"kind": "mla"},
    "copies": {"v1": False},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_page_of_another_model_or_layout_is_a_miss(
    open_rank: OpenRank, other: dict[str, Any]
) -> None:
    keys = KEYS[:6]
    rank = open_rank()
    rank.store(keys)
    rank.close()
    rank = open_rank(**other)
    assert rank.backend.batch_exists(keys) == 0
    assert rank.load(keys) == [False] * len(keys)
    assert not rank.backend.exists(keys[0])
    assert rank.store(keys, version=1) == [True] * len(keys)
    assert rank.load(keys, version=1) == [True] * len(keys)
    usage = rank.connector.usage()
    assert len(usage) == 2
    assert all(name.startswith("sglang-") for name in usage), usage
    rank.close()
    rank = open_rank()
    assert rank.backend.batch_exists(keys) == len(keys)
    assert rank.load(keys) == [True] * len(keys)


def test_a_pool_has_a_namespace_of_its_own(open_rank: OpenRank) -> None:
    rank = open_rank(has_mamba=True)
    assert rank.states is not None
    rank.states.fill(torch.arange(2), KEYS[:2])
    rank.store(KEYS[:2])
    state = PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(2), keys=KEYS[:2])
    assert rank.backend.batch_set_v2([state]) == {"mamba": [True] * 2}
    names = list(rank.connector.usage())
    assert sorted(name.split("-")[1] == "mamba" for name in names) == [False, True]
    assert all(is_of_model(name, MODEL) for name in names)
    assert rank.load(KEYS[:2]) == [True, True]


@pytest.mark.parametrize(
    "model", [None, "", "a@b", "a#b@c#d", "ünï/ modell", "/mnt/models/" + "x" * 1000, "a\nb"]
)
def test_any_name_of_a_model_does(open_rank: OpenRank, model: str | None) -> None:
    rank = open_rank(model_name=model)
    assert rank.store(KEYS) == [True] * len(KEYS)
    assert rank.load(KEYS) == [True] * len(KEYS)
    (name,) = rank.connector.usage()
    assert name.startswith("sglang-")
    assert rank.backend.clear()
    assert rank.connector.usage() == {}


def test_an_identity_stands_before_the_namespace(open_rank: OpenRank) -> None:
    other = open_rank(options={"identity": "other"})
    other.store(KEYS)
    other.close()
    rank = open_rank(options={"identity": "one"})
    assert rank.load(KEYS) == [False] * len(KEYS)
    rank.store(KEYS)
    assert rank.load(KEYS) == [True] * len(KEYS)
    names = sorted(rank.connector.usage())
    assert [name.split("#")[0] for name in names] == ["one", "other"]
    assert rank.backend.clear()
    assert rank.backend.batch_exists(KEYS) == 0
    assert list(rank.connector.usage()) == names[1:]


HYBRID: Final = '{"layer_types": ["attention", "mamba", "mamba"]}'


def test_each_kind_of_fp8_has_a_namespace_of_its_own() -> None:
    one, other = kv_pool(torch.float8_e4m3fn), kv_pool(torch.float8_e5m2)
    assert one.dtype == other.dtype == torch.uint8
    first = namespace_of(one, kv_cache_dtype="fp8_e4m3")
    assert first != namespace_of(other, kv_cache_dtype="fp8_e5m2")


def test_states_of_other_dtypes_or_layers_have_another_namespace() -> None:
    names = {
        namespace_of(mamba_pools(dtype=dtype)[1], "mamba", json_model_override_args=layers)
        for dtype in (torch.bfloat16, torch.float16)
        for layers in ("{}", HYBRID)
    }
    assert len(names) == 4


def test_scales_overrides_and_weights_have_namespaces_of_their_own(tmp_path: Path) -> None:
    scales, model = tmp_path / "scales.json", tmp_path / "model"
    scales.write_text("{}")
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    server = {"model_path": str(model), "quantization_param_path": str(scales)}
    plain = namespace_of(kv_pool(), **server)
    names = {plain, namespace_of(kv_pool(), **server, json_model_override_args=HYBRID)}
    for written in (scales, model / "model.safetensors", model / "config.json"):
        written.write_text("other")
        # A server goes on with those that it has; a new process sees the others.
        assert namespace_of(kv_pool(), **server) in names
        weights_of.cache_clear()
        names.add(namespace_of(kv_pool(), **server))
    assert len(names) == 5


@pytest.mark.parametrize("missing", ["kv_cache_dtype", "revision", "quantization_param_path"])
def test_a_field_that_a_server_does_not_have_drops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    real = RuntimeContext.config_leaf

    def config_leaf(context: RuntimeContext, name: str) -> Any:
        if name == missing:
            text = f"{name!r} is not a config leaf (no namespace)"
            raise ValueError(text)
        return real(context, name)

    whole = namespace_of(kv_pool())
    monkeypatch.setattr(RuntimeContext, "config_leaf", config_leaf)
    with caplog.at_level(logging.WARNING, logger="kvring"):
        plain = namespace_of(kv_pool())
    (told,) = (record.message for record in caplog.records if "configuration" in record.message)
    assert f"'{missing}'" in told
    assert plain != whole
    assert namespace_of(kv_pool(), **{missing: "other"}) == plain
    assert namespace_of(kv_pool(), quantization="fp8") != plain


def test_without_a_server_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(get_context(), "_config_bags", None)
    with caplog.at_level(logging.WARNING, logger="kvring"):
        assert settings.server_facts() == {}
    assert not caplog.records


def test_an_equal_server_finds_its_pages_again(tmp_path: Path) -> None:
    server = {"kv_cache_dtype": "fp8_e4m3", "model_path": str(tmp_path)}
    plain = namespace_of(kv_pool(), **server)
    # More memory, and other limits, change no page.
    larger: dict[str, Any] = {"hicache_size": 7, "context_length": 4096, "max_running_requests": 3}
    assert namespace_of(kv_pool(ratio=3.0), **server, **larger) == plain
    states = [mamba_pools()[1] for _ in range(2)]
    assert namespace_of(states[0], "mamba") == namespace_of(states[1], "mamba")
