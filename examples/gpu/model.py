"""A real model's configuration, for random weights: nothing is downloaded."""

import json
import random
from pathlib import Path

__all__ = ["prompt", "write_model"]

# Llama 3.2 1B, as its config.json on the Hugging Face hub has it: 32 KiB of KV cache a token.
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}

_FIRST_SPECIAL_TOKEN = 128000


def write_model(directory: Path) -> Path:
    """Write the configuration, and return the directory that vLLM takes as a model."""
    model = directory / "llama-3.2-1b"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(_CONFIG, indent=1), encoding="utf-8")
    return model


def prompt(tokens: int, number: int) -> list[int]:
    """Return a prompt that shares no prefix with that of another number or length."""
    generator = random.Random(f"{tokens} {number}")
    return [generator.randrange(_FIRST_SPECIAL_TOKEN) for _ in range(tokens)]
