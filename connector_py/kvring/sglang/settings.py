"""What a SGLang server is set to that decides what the bytes of its KV mean."""

import logging
import os
from typing import Any, Final

from sglang.srt.runtime_context import get_context

from kvring.weights import weights_of

__all__ = ["FILES", "SETTINGS", "server_facts"]

_logger = logging.getLogger(__name__)

# Fields of SGLang's configuration (`arg_groups/fields` of 0.5.23) that decide how KV is computed,
# or what its bytes mean. tests/python/engines/test_knobs.py says why the others do not.
SETTINGS: Final = (
    "attention_backend",
    "cp_strategy",
    "decode_attention_backend",
    "deepep_dispatcher_output_dtype",
    "dllm_algorithm",
    "dsa_decode_backend",
    "dsa_prefill_backend",
    "dsv4_attn_backend",
    "dsv4_prefill_backend",
    "dtype",
    "enable_deepseek_v4_fp4_indexer",
    "enable_dsa_cache_layer_split",
    "enable_int8_mamba_checkpoint",
    "enable_kv_cache_sharding",
    "enable_linear_replayssm",
    "enable_linear_replayssm_spec",
    "enable_quant_communications",
    "enable_w4a4_mxfp4_megamoe",
    "flashinfer_a2a_dispatch_type",
    "flashinfer_mxfp4_moe_precision",
    "is_embedding",
    "json_model_override_args",
    "kt_method",
    "kt_num_gpu_experts",
    "kv_cache_dtype",
    "linear_attn_backend",
    "linear_attn_decode_backend",
    "linear_attn_prefill_backend",
    "linear_attn_verify_backend",
    "load_format",
    "mamba_backend",
    "mamba_ssm_dtype",
    "mm_process_config",
    "model_config_parser",
    "model_impl",
    "model_loader_extra_config",
    "modelopt_quant",
    "prefill_attention_backend",
    "prefill_kv_cache_dequant_dtype",
    "qsa_indexer_dtype",
    "quantization",
    "quantize_and_serve",
    "revision",
    "speculative_algorithm",
    "speculative_draft_attention_backend",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_load_format",
    "speculative_draft_model_quantization",
    "speculative_draft_model_revision",
    "speculative_enable_w4a4_mxfp4_megamoe",
    "weight_version",
)

# Those that name files or models, and the field with the revision.
FILES: Final = {
    "decrypted_config_file": None,
    "decrypted_draft_config_file": None,
    "dllm_algorithm_config": None,
    "kt_weight_path": None,
    "model_path": "revision",
    "modelopt_checkpoint_restore_path": None,
    "quantization_param_path": None,
    "rl_quant_profile": None,
    "speculative_draft_model_path": "speculative_draft_model_revision",
    "uno_lora_path": None,
}


def server_facts() -> dict[str, Any]:
    """Return what this process's server knows of its KV; nothing if it is no server."""
    if not get_context().is_config_namespace_published("model"):
        return {}
    values: dict[str, Any] = {}
    for name in (*SETTINGS, *FILES):
        values.update(_field(name))
    facts: dict[str, Any] = {name: str(values[name]) for name in SETTINGS if name in values}
    for name, revision in FILES.items():
        if name in values:
            path = values[name]
            weights = weights_of(path, values.get(revision or "")) if path else None
            # Renamed models are told apart by their names.
            facts[name] = weights if name == "model_path" else [path, weights]
    # Which layers the ranks of a pipeline have, those with states among them.
    return facts | {"partition": os.environ.get("SGLANG_PP_LAYER_PARTITION")}


def _field(name: str) -> dict[str, Any]:
    """Return a field of SGLang's configuration with its value; nothing, and a warning, without."""
    try:
        return {name: get_context().config_leaf(name)}
    except (AttributeError, ValueError) as error:
        _logger.warning(
            "SGLang does not say '%s' of its configuration (%s): servers that differ in it find "
            "each other's pages; set 'identity' to keep them apart",
            name,
            error,
        )
        return {}
