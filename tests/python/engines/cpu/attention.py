"""Small models with random weights whose layers do not all attend to everything before them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.models.gemma3
import vllm.model_executor.models.lfm2
import vllm.model_executor.models.llama_eagle
import vllm.v1.spec_decode.eagle  # noqa: F401
from safetensors.torch import save_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Lfm2Config, Lfm2ForCausalLM

from tests.support.random_llama import write_llama

_LAYERS = 4
_HIDDEN_SIZE = 128
_COMMON: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": _HIDDEN_SIZE,
    "intermediate_size": 256,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
}


def write_sliding_window(directory: Path) -> dict[str, Any]:
    """Write a model in which every second layer sees 128 tokens; return the engine's options."""
    config = Gemma3TextConfig(
        **_COMMON,
        head_dim=64,
        sliding_window=128,
        layer_types=_every_second("sliding_attention"),
    )
    return _write(Gemma3ForCausalLM, config, directory)


def write_hybrid(directory: Path) -> dict[str, Any]:
    """Write a model in which every second layer has a state; return the engine's options."""
    config = Lfm2Config(
        **_COMMON,
        layer_types=_every_second("conv"),
        # Transformers no longer has these, and vLLM reads them.
        conv_dim=_HIDDEN_SIZE,
        block_dim=_HIDDEN_SIZE,
        block_ff_dim=256,
        block_multiple_of=32,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
    )
    return {**_write(Lfm2ForCausalLM, config, directory), "mamba_cache_mode": "align"}


def write_eagle(directory: Path) -> dict[str, Any]:
    """Write a Llama and an EAGLE draft for it; return the engine's options."""
    write_llama(directory, seed=1, layers=2, hidden_size=_HIDDEN_SIZE)
    draft = directory / "draft"
    llama = write_llama(draft, seed=2, layers=1, hidden_size=_HIDDEN_SIZE)
    weights = {
        name.removeprefix("model."): weight
        for name, weight in llama.items()
        if ".layers." in name and "input_layernorm" not in name
    }
    weights["fc.weight"] = torch.randn(_HIDDEN_SIZE, 2 * _HIDDEN_SIZE) * 0.06
    save_file(weights, draft / "model.safetensors")
    speculation = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    return {"model": directory, "speculative_config": speculation}


def _every_second(kind: str) -> Sequence[str]:
    return [kind, "full_attention"] * (_LAYERS // 2)


def _write(model: Any, config: Any, directory: Path) -> dict[str, Any]:
    torch.manual_seed(1)
    model(config).eval().save_pretrained(directory)
    return {"model": directory}
