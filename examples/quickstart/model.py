"""A small Llama with seeded random weights, and the two halves of its work: prefill and decode.

Random weights say nothing sensible, but their logits depend on every key and value in the cache,
which is all that matters here.
"""

import os
from dataclasses import dataclass

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from examples.quickstart.console import Advance
from examples.quickstart.prompt import VOCABULARY_SIZE

MODEL_NAME = "kvring-demo/llama-16x512-random"
WEIGHTS_SEED = 20_240_917
PREFILL_STEP_TOKENS = 512


@dataclass(frozen=True)
class Generation:
    """The tokens a model chose greedily, and the logits it chose each of them by."""

    token_ids: list[int]
    logits: torch.Tensor


def use_all_cores() -> None:
    """Fix the number of threads: both processes must split their sums alike to agree exactly."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def model_config() -> LlamaConfig:
    """Return the model's geometry: 64 KiB of KV cache per token in float32."""
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=16,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        # The usual 0.02 would leave the logits nearly flat, and the text one repeated token.
        initializer_range=0.06,
        attn_implementation="sdpa",
    )


def build_model() -> LlamaForCausalLM:
    """Build the model; every process that calls this gets the same weights."""
    torch.manual_seed(WEIGHTS_SEED)
    return LlamaForCausalLM(model_config()).eval()


def prefill(model: LlamaForCausalLM, token_ids: list[int], advance: Advance) -> DynamicCache:
    """Compute the KV cache of ``token_ids``, a few hundred tokens at a time."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        for start in range(0, len(token_ids), PREFILL_STEP_TOKENS):
            step = token_ids[start : start + PREFILL_STEP_TOKENS]
            model(torch.tensor([step]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            advance(len(step))
    return cache


def generate(
    model: LlamaForCausalLM, cache: DynamicCache, last_token_id: int, token_count: int
) -> Generation:
    """Continue greedily from ``cache`` and the prompt's last token, which is not in it yet."""
    token_ids: list[int] = []
    logits: list[torch.Tensor] = []
    next_token_id = last_token_id
    with torch.inference_mode():
        for _ in range(token_count):
            output = model(torch.tensor([[next_token_id]]), past_key_values=cache, use_cache=True)
            logits.append(output.logits[0, -1].clone())
            next_token_id = int(logits[-1].argmax())
            token_ids.append(next_token_id)
    return Generation(token_ids=token_ids, logits=torch.stack(logits))
