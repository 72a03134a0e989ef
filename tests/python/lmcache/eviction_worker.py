"""One process of the test with LMCache's L2 eviction on top: stores much, loads some of it."""

import argparse
import json
import random
import time
from collections import Counter

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2AdapterListener

from tests.support.caches import CacheSession

CHUNK_BYTES = 2 << 20
ROUND_CHUNKS = 64
L1_SIZE_BYTES = 640 << 20
SETTLE_DEADLINE_S = 60.0
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([CHUNK_BYTES])], dtypes=[torch.uint8])
NOISE = torch.randint(
    0, 256, (2 * CHUNK_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
)


class DeletedKeys(L2AdapterListener):
    """Counts how often LMCache was told that a key is deleted."""

    def __init__(self) -> None:
        """Start with nothing deleted."""
        self.times = Counter[ObjectKey]()

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        """Ignore what is stored."""

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None:
        """Ignore what is loaded."""

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        """Count."""
        self.times.update(keys)


def key_of(number: int) -> ObjectKey:
    """Return the key of a chunk."""
    return ObjectKey(
        chunk_hash=number.to_bytes(32, "big"),
        model_name="test/model",
        kv_rank=ObjectKey.ComputeKVRank(1, 0, 1, 0),
        cache_salt="tenant" if number % 2 else "",
    )


def content_of(number: int) -> torch.Tensor:
    """Return a chunk's content: a window of noise, other for each number."""
    start = number * 4093 % CHUNK_BYTES
    return NOISE[start : start + CHUNK_BYTES]


def load_and_compare(session: CacheSession, numbers: list[int]) -> tuple[int, int]:
    """Load chunks into LMCache's memory; return how many were found, and how many were right."""
    keys = [key_of(number) for number in numbers]
    found = session.prefetch(keys, LAYOUT)
    hits = [number for number, hit in zip(numbers, found, strict=True) if hit]
    hit_keys = [key_of(number) for number in hits]
    with session.read(hit_keys) as tensors:
        right = sum(
            torch.equal(tensor, content_of(number))
            for number, tensor in zip(hits, tensors, strict=True)
        )
    session.manager.delete_l1_keys(hit_keys)
    return len(hits), right


def work(session: CacheSession, first: int, count: int) -> dict[str, int]:
    """Store chunks `first` and following, load from all there are, and wait for the evictions."""
    choose = random.Random(first)
    deleted = DeletedKeys()
    session.manager.register_l2_listener(deleted)
    _, adapter = session.manager.l2_adapters()[0]
    connector = adapter._client
    held_at_start = connector.stats()["keys"]
    hits = right = hits_of_before = 0
    for stored in range(0, count, ROUND_CHUNKS):
        numbers = range(first + stored, first + stored + ROUND_CHUNKS)
        keys = [key_of(number) for number in numbers]
        with session.write(keys, LAYOUT) as tensors:
            for number, tensor in zip(numbers, tensors, strict=True):
                tensor.copy_(content_of(number))
        session.wait_until_stored(stored + ROUND_CHUNKS)
        session.manager.delete_l1_keys(keys)
        recent = range(max(0, numbers.stop - 512), numbers.stop)
        found, equal = load_and_compare(session, choose.sample(recent, 32))
        hits, right = hits + found, right + equal
        if stored == 0 and first > 0:
            found, equal = load_and_compare(session, list(range(first - 64, first)))
            hits, right, hits_of_before = hits + found, right + equal, found
    deadline_s = time.monotonic() + SETTLE_DEADLINE_S
    while True:
        stats = connector.stats()
        deletes = stats["deleted"] + stats["delete_absent"]
        if adapter.get_usage().usage_fraction < 0.8 and deletes == deleted.times.total():
            break
        assert time.monotonic() < deadline_s, f"LMCache's account stays at {adapter.get_usage()}"
        time.sleep(0.1)
    return {
        "held_at_start": held_at_start,
        "hits": hits,
        "right": right,
        "hits_of_before": hits_of_before,
        "evicted": stats["evicted"],
        "stored": stats["set_stored"],
        "failed": stats["set_failed"],
        "deletes": deletes,
        "deletes_of_what_was_gone": stats["delete_absent"],
        "notified": deleted.times.total(),
        "most_often": max(deleted.times.values(), default=0),
    }


def main() -> None:
    """Run one process's share and print its counts as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("adapter_json")
    arguments = parser.parse_args()
    with CacheSession(json.loads(arguments.adapter_json), L1_SIZE_BYTES) as session:
        print(json.dumps(work(session, arguments.first, arguments.count)))


if __name__ == "__main__":
    main()
