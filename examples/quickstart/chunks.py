"""How a prompt's KV cache becomes LMCache chunks, and chunks become a KV cache again."""

import hashlib
from dataclasses import dataclass

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from transformers import DynamicCache, LlamaConfig

CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Chunk:
    """A run of the prompt's tokens and the key its keys and values are stored under."""

    key: ObjectKey
    start: int
    end: int

    @property
    def token_count(self) -> int:
        """The number of tokens, ``CHUNK_TOKENS`` for all chunks but the last."""
        return self.end - self.start


def split_into_chunks(token_ids: list[int], model_name: str) -> list[Chunk]:
    """Cut ``token_ids`` into chunks whose keys are hashed as LMCache's server hashes them.

    Each hash covers all the tokens before it as well, so a key stands for a whole prefix.
    """
    hasher = TokenHasher(chunk_size=CHUNK_TOKENS, hash_algorithm="blake3")
    kv_rank = ObjectKey.ComputeKVRank(world_size=1, global_rank=0, local_world_size=1, local_rank=0)
    chunks: list[Chunk] = []
    prefix_hash = None
    for start in range(0, len(token_ids), CHUNK_TOKENS):
        end = min(start + CHUNK_TOKENS, len(token_ids))
        # compute_chunk_hashes() would do all of this but drops the last, partial chunk.
        prefix_hash = hasher.hash_tokens(token_ids[start:end], prefix_hash)
        key = ObjectKey(
            chunk_hash=hasher.hash_to_bytes(prefix_hash), model_name=model_name, kv_rank=kv_rank
        )
        chunks.append(Chunk(key=key, start=start, end=end))
    return chunks


def chunk_layout(config: LlamaConfig, token_count: int) -> MemoryLayoutDesc:
    """Return LMCache's layout of a chunk: keys and values, layers, tokens, heads times width."""
    width = config.num_key_value_heads * config.head_dim
    shape = torch.Size([2, config.num_hidden_layers, token_count, width])
    return MemoryLayoutDesc(shapes=[shape], dtypes=[torch.float32])


def copy_from_cache(cache: DynamicCache, chunk: Chunk, target: torch.Tensor) -> None:
    """Copy the chunk's keys and values out of the model's cache into LMCache's memory."""
    for layer_index, layer in enumerate(cache.layers):
        for kind, states in enumerate((layer.keys, layer.values)):
            part = states[0, :, chunk.start : chunk.end].transpose(0, 1)
            target[kind, layer_index].view(part.shape).copy_(part)


class CacheBuilder:
    """Puts chunks back together into a cache that the model can go on from."""

    def __init__(self, config: LlamaConfig, token_count: int) -> None:
        """Reserve the memory of a cache of ``token_count`` tokens."""
        self._config = config
        self._states = torch.empty(
            (2, config.num_hidden_layers, config.num_key_value_heads, token_count, config.head_dim),
            dtype=torch.float32,
        )

    def add(self, chunk: Chunk, source: torch.Tensor) -> None:
        """Copy one chunk's keys and values from LMCache's memory to their place."""
        heads, width = self._config.num_key_value_heads, self._config.head_dim
        by_head = source.unflatten(3, (heads, width)).transpose(2, 3)
        self._states[:, :, :, chunk.start : chunk.end].copy_(by_head)

    def finish(self) -> DynamicCache:
        """Return the cache with all that was added."""
        cache = DynamicCache(config=self._config)
        for layer_index, (keys, values) in enumerate(zip(*self._states, strict=True)):
            cache.update(keys[None], values[None], layer_index)
        return cache


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of the tensor's bytes."""
    content = tensor.contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
