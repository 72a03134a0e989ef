"""One real node: LMCache's StorageManager over kvring, whose GPU is a lock that is held for a time.

It reads requests as lines of JSON, serves them side by side, and prints what became of each.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey

from tests.support.caches import CacheSession
from tests.support.two_nodes import stores_in

_THREADS = 16
_WAIT_S = 60.0
_HUGE_PAGE_BYTES = 2 << 20
# madvise(2), since Linux 6.1.
_MADV_COLLAPSE = 25


@dataclass(frozen=True)
class Served:
    """What became of a request; the last line of a node says how many of all were shared."""

    number: int
    found: int
    computed: int
    wrong: int
    first_token_s: float
    shared: int = 0


class _Node:
    def __init__(self, session: CacheSession, arguments: argparse.Namespace) -> None:
        self._session = session
        self._arguments = arguments
        self._layout = MemoryLayoutDesc(
            shapes=[torch.Size([arguments.chunk_bytes])], dtypes=[torch.uint8]
        )
        self._gpu = threading.Lock()
        self._stored = 0

    def serve(self, number: int, chunks: list[int], last_tokens: int) -> Served:
        began_s = time.monotonic()
        keys = [key_of(chunk) for chunk in chunks]
        hits = self._session.prefetch(keys, self._layout, with_memory=True)
        found = next((place for place, hit in enumerate(hits) if not hit), len(hits))
        wrong = 0
        with self._session.read(keys[:found]) as tensors:
            for chunk, tensor in zip(chunks, tensors, strict=False):
                wrong += int(tensor[0]) != chunk % 251 or int(tensor[-1]) != chunk % 251
        computed = len(keys) - found
        tokens = computed * self._arguments.chunk_tokens + last_tokens
        with self._gpu:
            time.sleep(tokens / self._arguments.prefill_tokens_per_s)
        first_token_s = time.monotonic() - began_s
        if computed:
            self._store(dict(zip(keys[found:], chunks[found:], strict=True)))
        return Served(number, found, computed, wrong, first_token_s)

    def _store(self, chunks: dict[ObjectKey, int]) -> None:
        # Not those that another request is about to store.
        reserved = self._session.manager.reserve_write(list(chunks), self._layout)
        for key, memory in reserved.items():
            memory.tensor.fill_(chunks[key] % 251)
        self._session.manager.finish_write(list(reserved))
        self._stored += len(reserved)

    def settle(self) -> None:
        """Wait until all is stored here, and in the shared tier."""
        self._session.wait_until_stored(self._stored)
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            tier = self.tier()
            if tier["stores"] >= self._stored and tier["promoted"] >= tier["found"]:
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._stored} chunks were stored, and {tier} says otherwise")
            time.sleep(0.002)

    def tier(self) -> dict[str, Any]:
        """Return what is said of the shared tier."""
        (store,) = stores_in(self._session.manager.report_status())
        return dict(store["shared_tier"])


def key_of(chunk: int) -> ObjectKey:
    """Return LMCache's key of a chunk."""
    return ObjectKey(chunk_hash=chunk.to_bytes(32, "big"), model_name="fleet/model", kv_rank=0)


def put_l1_into_huge_pages(session: CacheSession) -> None:
    """Have L1 in huge pages: how its small ones lie decides the rate of a drive, by chance."""
    memory = session.manager._l1_memory_desc  # noqa: SLF001 - nothing else tells where it lies
    first = -(-memory.ptr // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    madvise = ctypes.CDLL(None).madvise
    # Some may not come together now; the others do.
    for start in range(first, memory.ptr + memory.size - _HUGE_PAGE_BYTES + 1, _HUGE_PAGE_BYTES):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_PAGE_BYTES), _MADV_COLLAPSE)


def main() -> None:
    """Serve what comes, until there is no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=json.loads)
    parser.add_argument("--chunk-bytes", type=int, required=True)
    parser.add_argument("--chunk-tokens", type=int, required=True)
    parser.add_argument("--prefill-tokens-per-s", type=float, required=True)
    # Of all requests that it serves at a time.
    parser.add_argument("--l1-bytes", type=int, default=2 << 30)
    parser.add_argument("--one-by-one", action="store_true", help="settle after each request")
    arguments = parser.parse_args()
    printing = threading.Lock()

    def tell(served: Served) -> None:
        with printing:
            print(json.dumps(asdict(served)), flush=True)

    def serve(node: _Node, line: str) -> None:
        served = node.serve(**json.loads(line))
        if arguments.one_by_one:
            node.settle()
        tell(served)

    # What is stored is on disk only.
    with CacheSession(arguments.spec, arguments.l1_bytes, store_policy="skip_l1") as session:
        put_l1_into_huge_pages(session)
        node = _Node(session, arguments)
        while not node.tier()["is_answering"]:
            time.sleep(0.01)
        tell(Served(-1, 0, 0, 0, 0.0))
        with ThreadPoolExecutor(_THREADS) as threads:
            futures = [threads.submit(serve, node, line) for line in sys.stdin]
        for future in futures:
            future.result()
        tell(Served(-1, 0, 0, 0, 0.0, shared=node.tier()["found"]))


if __name__ == "__main__":
    main()
