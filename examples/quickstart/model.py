"""A small Llama with random weights. Nothing is downloaded; a token depends on all before it."""

import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

__all__ = ["DESCRIPTION", "prompt", "write_model"]

_VOCABULARY = 4096
DESCRIPTION = "a Llama of 16 layers and hidden size 512, random weights, float32"


def write_model(directory: Path) -> None:
    """Write the model, the same each time."""
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=16,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        initializer_range=0.06,
        tie_word_embeddings=False,
    )
    torch.manual_seed(20_240_917)
    LlamaForCausalLM(config).eval().save_pretrained(directory)


def prompt(number: int, length: int) -> list[int]:
    """Return a prompt of so many tokens."""
    generator = random.Random(f"prompt {number}")
    return [generator.randrange(3, _VOCABULARY) for _ in range(length)]
