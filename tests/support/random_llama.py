"""A small Llama with random weights. Nothing is downloaded; a token depends on all before it."""

import random
from pathlib import Path
from typing import Any

__all__ = ["prompt", "write_llama"]

_VOCABULARY = 4096
_HEAD_SIZE = 64


def write_llama(directory: Path, *, seed: int, layers: int, hidden_size: int) -> dict[str, Any]:
    """Write the model of a seed, the same each time, in float32.

    Args:
        directory: Where to.
        seed: Of its weights.
        layers: How many.
        hidden_size: A multiple of 64, the size of a head.

    Returns:
        Its weights, by name.
    """
    # Not where prompts alone are made: they take ten seconds to import.
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = hidden_size // _HEAD_SIZE
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=_HEAD_SIZE,
        max_position_embeddings=131_072,
        initializer_range=0.06,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    weights: dict[str, Any] = model.state_dict()
    return weights


def prompt(number: int, tokens: int) -> list[int]:
    """Return a prompt, another one for each number; a longer one begins as a shorter one."""
    return random.Random(number).choices(range(3, _VOCABULARY), k=tokens)
