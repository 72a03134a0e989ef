"""One process of the StorageManager test: writes seeded chunks, or reads and compares them."""

import argparse
import hashlib
import json
from itertools import product

import numpy
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey

from tests.support.caches import CacheSession

CHUNK_COUNT = 24
CHUNK_SIZES_BYTES = (522_240, 2 << 20)
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-v0.3")
SALTS = ("", "tenant-a")
L1_SIZE_BYTES = 640 << 20


def group_keys(model: str, salt: str, size_bytes: int) -> list[ObjectKey]:
    """Return the keys of one group; models and salts share their chunk hashes on purpose."""
    kv_rank = ObjectKey.ComputeKVRank(1, 0, 1, 0)
    hashes = [
        hashlib.blake2b(f"{size_bytes}/{number}".encode(), digest_size=32).digest()
        for number in range(CHUNK_COUNT)
    ]
    return [
        ObjectKey(chunk_hash=chunk_hash, model_name=model, kv_rank=kv_rank, cache_salt=salt)
        for chunk_hash in hashes
    ]


def content_of(key: ObjectKey, size_bytes: int) -> torch.Tensor:
    """Return a key's content: random, but the same in every process."""
    seed = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    generator = numpy.random.default_rng(int.from_bytes(seed, "big"))
    return torch.frombuffer(bytearray(generator.bytes(size_bytes)), dtype=torch.uint8)


def layout_of(size_bytes: int) -> MemoryLayoutDesc:
    """Return the layout of a chunk that is nothing but bytes."""
    return MemoryLayoutDesc(shapes=[torch.Size([size_bytes])], dtypes=[torch.uint8])


def write(session: CacheSession) -> dict[str, int]:
    """Write all groups, and wait until they are in L2."""
    count = 0
    for model, salt, size_bytes in product(MODELS, SALTS, CHUNK_SIZES_BYTES):
        keys = group_keys(model, salt, size_bytes)
        with session.write(keys, layout_of(size_bytes)) as tensors:
            for key, tensor in zip(keys, tensors, strict=True):
                tensor.copy_(content_of(key, size_bytes))
        count += len(keys)
    session.wait_until_stored(count)
    return {"stored": count}


def read(session: CacheSession) -> dict[str, int]:
    """Prefetch all groups, compare every byte, and ask for what was never stored."""
    hits = equal = 0
    for model, salt, size_bytes in product(MODELS, SALTS, CHUNK_SIZES_BYTES):
        keys = group_keys(model, salt, size_bytes)
        found = session.prefetch(keys, layout_of(size_bytes))
        hits += sum(found)
        hit_keys = [key for key, hit in zip(keys, found, strict=True) if hit]
        with session.read(hit_keys) as tensors:
            for key, tensor in zip(hit_keys, tensors, strict=True):
                equal += torch.equal(tensor, content_of(key, size_bytes))
    false_hits = 0
    for model, salt in ((MODELS[0], "tenant-b"), ("another/model", "")):
        size_bytes = CHUNK_SIZES_BYTES[0]
        never_stored = group_keys(model, salt, size_bytes)
        false_hits += sum(session.prefetch(never_stored, layout_of(size_bytes)))
    l1_status = session.manager.report_status()["l1_manager"]
    return {
        "hits": hits,
        "equal": equal,
        "false_hits": false_hits,
        "read_locked": l1_status["read_locked_count"],
        "write_locked": l1_status["write_locked_count"],
    }


def main() -> None:
    """Run one phase and print its counts as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("phase", choices=("write", "read"))
    parser.add_argument("adapter_json")
    arguments = parser.parse_args()
    with CacheSession(json.loads(arguments.adapter_json), L1_SIZE_BYTES) as session:
        counts = write(session) if arguments.phase == "write" else read(session)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
