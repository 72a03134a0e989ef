"""Store, look up and load chunks from a program of your own.

    python examples/from_python.py DIRECTORY

Each call waits for its answer. `help(kvring.Store)` lists the options of a store.
"""

import argparse

import numpy as np

import kvring


def main(path: str) -> None:
    """Store three arrays, open the store again, and load them."""
    # LMCache's form of a key: model@kv_rank@object_group@chunk_hash.
    keys = [f"demo/model@00000000@0@{number:064x}" for number in range(3)]
    chunks = [np.full((2, 128, 64), number, np.float16) for number in range(3)]

    with kvring.open(path, "64MiB") as store:
        for key, chunk in zip(keys, chunks, strict=True):
            store.put(key, chunk)

    with kvring.open(path, "64MiB") as store:
        print("found after a restart:", [store.exists(key) for key in [*keys, "no such key"]])
        # Into memory of the caller; contiguous CPU tensors of torch work as well.
        outs = [np.empty((2, 128, 64), np.float16) for _ in keys]
        loaded = store.get_many(keys, outs)
        print("loaded:", [out is not None for out in loaded])
        print("equal:", all(map(np.array_equal, outs, chunks)))
        # Without memory of the caller the chunk is a bytearray; a miss is None.
        first = store.get(keys[0])
        print("bytes:", first and len(first))
        print("missed:", store.get("no such key"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the store is made")
    main(parser.parse_args().directory)
