"""Store, look up and load chunks from a program of your own.

    python examples/from_python.py DIRECTORY

Each call waits for its answer. `help(kvring.Store)` lists the options of a store.
"""

import argparse

import kvring


def main(path: str) -> None:
    """Store three chunks, and load them from the store as the next process would open it."""
    # LMCache's form of a key: model@kv_rank@object_group@chunk_hash.
    chunks = {
        f"demo/model@00000000@0@{number:064x}": bytearray([number]) * 65_536 for number in (1, 2, 3)
    }
    with kvring.open(path, "64MiB") as store:
        for key, chunk in chunks.items():
            store.put(key, chunk)

    with kvring.open(path, "64MiB") as store:
        print("found after a restart:", [store.exists(key) for key in [*chunks, "no such key"]])
        print("equal:", store.get_many(list(chunks)) == list(chunks.values()))
        print("missed:", store.get("no such key"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the store is made")
    main(parser.parse_args().directory)
