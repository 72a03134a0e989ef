"""How long LMCache takes for what is on this node's own disk, with this or that behind it.

One process for each case: it stores chunks, and then times prefetches of them as it is told to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc

from benches.fleet.node import key_of, put_l1_into_huge_pages
from tests.support.caches import CacheSession

_CHUNK_BYTES = 1 << 20
_CHUNKS = 16
_REQUESTS = 40
_L1_BYTES = 256 << 20


def main() -> None:
    """Time a round for each line that comes, which says how many unknown chunks are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", type=json.loads, nargs="+")
    arguments = parser.parse_args()
    layout = MemoryLayoutDesc(shapes=[torch.Size([_CHUNK_BYTES])], dtypes=[torch.uint8])
    keys = [key_of(number) for number in range(_CHUNKS)]
    unknown = itertools.count(_CHUNKS)
    spec, *further = arguments.specs
    with CacheSession(spec, _L1_BYTES, *further, store_policy="skip_l1") as session:
        put_l1_into_huge_pages(session)
        with session.write(keys, layout) as tensors:
            for tensor in tensors:
                tensor.fill_(7)
        session.wait_until_stored(_CHUNKS * len(arguments.specs))
        print("ready", flush=True)
        for line in sys.stdin:
            durations_s = []
            for _ in range(_REQUESTS):
                asked = [*keys, *(key_of(next(unknown)) for _ in range(int(line)))]
                began_s = time.monotonic()
                found = session.prefetch(asked, layout)
                durations_s.append(time.monotonic() - began_s)
                if sum(found) != _CHUNKS:
                    raise RuntimeError(f"{sum(found)} of {_CHUNKS} chunks were found")
                with session.read(keys):
                    pass
            print(json.dumps(durations_s), flush=True)


if __name__ == "__main__":
    main()
