"""The least size of vLLM's primary tier, by a model's config.json.

Where the prefix of a request does not fit in it as a whole, vLLM uses nothing of what is stored.
"""

import json
from pathlib import Path
from typing import Any

from kvring.cli.failure import WrongArguments
from kvring.cli.output import size_text

__all__ = ["advice"]

_GIB = 1 << 30
# vLLM keeps models of 32 bits in 16 too, if it is not told otherwise.
_VALUE_BYTES = 2
_ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention")


def advice(model: Path | None, max_model_len: int | None, memory_gb: float) -> str:
    """Tell the least size for a model, or how to compute it, and whether `memory_gb` is enough.

    Args:
        model: A config.json, or the directory that has one.
        max_model_len: Tokens of the longest request; by default those of the model.
        memory_gb: Size of the primary tier, in GiB.

    Raises:
        WrongArguments: That is no config.json, or it lacks what it takes.
    """
    if model is None:
        return (
            "--l1-size-gb must hold the longest prefix as a whole, else vLLM loads nothing of it: "
            "2 x layers x KV heads x head size x 2 bytes a token; --model DIRECTORY computes it"
        )
    config = _read(model)
    try:
        token_bytes = _token_bytes(config)
        tokens = max_model_len or config["max_position_embeddings"]
    except (KeyError, TypeError, ZeroDivisionError, OverflowError) as error:
        text = f"--model {model}: {error} is not told as in a Llama's; run it without --model"
        raise WrongArguments(text) from error
    least_bytes = tokens * token_bytes
    what = f"{tokens:,} tokens of {size_text(token_bytes)} (16 bits) are {size_text(least_bytes)}"
    if memory_gb * _GIB >= least_bytes:
        return f"{what}, which --l1-size-gb {memory_gb:g} holds"
    least_gb = -(-least_bytes // _GIB)
    return (
        f"warning: {what}: longer prefixes than --l1-size-gb {memory_gb:g} holds are not loaded; "
        f"write --l1-size-gb {least_gb} or a smaller --max-model-len"
    )


def _read(model: Path) -> dict[str, Any]:
    path = model / "config.json" if model.is_dir() else model
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {**document, **document.get("text_config", {})}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise WrongArguments(f"--model {model}: cannot read a config.json: {error}") from error


def _token_bytes(config: dict[str, Any]) -> int:
    layers = config["num_hidden_layers"]
    if kinds := config.get("layer_types"):
        # Others have a state in place of tokens.
        layers = sum(kind in _ATTENTION_KINDS for kind in kinds)
    if config.get("kv_lora_rank"):
        return int(layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * _VALUE_BYTES)
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_size * _VALUE_BYTES)
