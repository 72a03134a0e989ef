"""What vLLM's own connector makes of an engine's configuration: only equal KV is in a namespace."""

from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

import torch
from vllm.config.load import LoadConfig
from vllm.config.multimodal import MultiModalConfig
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from kvring.weights import weights_of
from tests.python.engines.vllm_engine import (
    kvring_tier,
    namespace_under,
    tiny_model,
    whole_config,
)

ROPE: Final = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}

# Each gave fluent nonsense: other KV, of the same length, from the namespace of the plain one.
OTHERS: Final[dict[str, dict[str, Any]]] = {
    "skipped layers": {"cache": {"kv_cache_dtype_skip_layers": ["0"]}},
    "other skipped layers": {"cache": {"kv_cache_dtype_skip_layers": ["1"]}},
    "states": {"cache": {"mamba_cache_dtype": "float16"}},
    "bf16 states": {"cache": {"mamba_cache_dtype": "bfloat16"}},
    "SSM states": {"cache": {"mamba_ssm_cache_dtype": "float16"}},
    "positions": {"hf_overrides": {"rope_parameters": ROPE}},
    "revision": {"revision": "other"},
    "random weights": {"more": {"load_config": LoadConfig(load_format="dummy")}},
}

# These only size an engine.
SAME: Final[dict[str, dict[str, Any]]] = {
    "restart": {},
    "length": {"max_model_len": 1024},
    "name": {"served_model_name": "alias"},
    "memory": {"cache": {"gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 100}},
    "eager": {"enforce_eager": True},
    "downloads": {"more": {"load_config": LoadConfig(download_dir="/elsewhere")}},
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return tiny_model(tmp_path / "model")


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_kv_has_a_namespace_of_its_own(
    store_path: Path, model: str, other: dict[str, Any]
) -> None:
    tiers = [kvring_tier(store_path)]
    plain = namespace_under(whole_config(tiers, model))
    assert namespace_under(whole_config(tiers, model, **other)) != plain


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
def test_equal_kv_is_found_again(store_path: Path, model: str, same: dict[str, Any]) -> None:
    tiers = [kvring_tier(store_path)]
    plain = namespace_under(whole_config(tiers, model))
    assert namespace_under(whole_config(tiers, model, **same)) == plain


def test_other_weights_in_the_same_directory_have_another_namespace(
    store_path: Path, model: str
) -> None:
    tiers = [kvring_tier(store_path)]
    plain = namespace_under(whole_config(tiers, model))
    (Path(model) / "model.safetensors").write_bytes(b"trained")
    # The process goes on with the weights that it has.
    assert namespace_under(whole_config(tiers, model)) == plain
    weights_of.cache_clear()
    assert namespace_under(whole_config(tiers, model)) != plain


def test_other_scales_in_the_same_file_have_another_namespace(
    store_path: Path, model: str, tmp_path: Path
) -> None:
    scales = tmp_path / "scales.json"
    names = set()
    for content in ("{}", '{"layer": {}}'):
        scales.write_text(content)
        weights_of.cache_clear()
        config = whole_config([kvring_tier(store_path)], model)
        config.model_config.multimodal_config = MultiModalConfig(
            mm_encoder_attn_dtype="fp8", mm_encoder_fp8_scale_path=str(scales)
        )
        names.add(namespace_under(config))
    assert len(names) == 2


def test_a_length_that_changes_positions_counts(store_path: Path, tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 10_000.0}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 2048, **factors}
    model = tiny_model(tmp_path / "model", rope_parameters=rope)
    tiers = [kvring_tier(store_path)]
    names = {
        namespace_under(whole_config(tiers, model, max_model_len=tokens)) for tokens in (1024, 4096)
    }
    assert len(names) == 2


def test_adapters_salts_and_pictures_are_in_the_hashes_of_vllm() -> None:
    init_none_hash(sha256)

    def first_hash(**more: Any) -> Any:
        request = Request(
            request_id="one",
            prompt_token_ids=list(range(16)),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=get_request_block_hasher(16, sha256),
            **more,
        )
        (only,) = request.block_hashes
        return only

    def picture(name: str) -> list[Any]:
        return [MultiModalFeatureSpec(None, "image", name, PlaceholderRange(0, 8), name)]

    hashes = {
        first_hash(),
        first_hash(lora_request=LoRARequest("one", 1, "/adapters/one")),
        first_hash(lora_request=LoRARequest("two", 1, "/adapters/one")),
        first_hash(lora_request=LoRARequest("one", 1, "/adapters/two")),
        first_hash(cache_salt="one"),
        first_hash(cache_salt="two"),
        first_hash(mm_features=picture("one")),
        first_hash(mm_features=picture("two")),
        first_hash(prompt_embeds=torch.zeros(16, 4)),
        first_hash(prompt_embeds=torch.ones(16, 4)),
    }
    assert len(hashes) == 10
