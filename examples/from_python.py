"""Store, look up and load chunks from a program of your own, with asyncio.

    python examples/from_python.py DIRECTORY

A batch is submitted and gets a future id; its completion comes by drain_completions(), as soon as
event_fd() is readable.
"""

import asyncio
import sys
from typing import Any

import kvring


class Store:
    """A connector whose batches can be awaited."""

    def __init__(self, path: str, capacity: str, **options: Any) -> None:
        """Open the store at a path."""
        self.connector = kvring.Connector(path, capacity, **options)
        self._waiting: dict[int, asyncio.Future[list[bool]]] = {}
        asyncio.get_running_loop().add_reader(self.connector.event_fd(), self._complete)

    def _complete(self) -> None:
        for future_id, _ok, _error, results in self.connector.drain_completions():
            self._waiting.pop(future_id).set_result(results)

    async def _of(self, future_id: int) -> list[bool]:
        future: asyncio.Future[list[bool]] = asyncio.get_running_loop().create_future()
        self._waiting[future_id] = future
        return await future

    async def store(self, chunks: dict[str, bytes]) -> list[bool]:
        """Return of each chunk whether it is stored."""
        return await self._of(self.connector.submit_batch_set(list(chunks), list(chunks.values())))

    async def exists(self, keys: list[str]) -> list[bool]:
        """Return of each key whether it is stored."""
        return await self._of(self.connector.submit_batch_exists(keys))

    async def load(self, key: str, length_bytes: int) -> bytes | None:
        """Return a chunk; None if it is not stored in this length."""
        memory = bytearray(length_bytes)
        (is_loaded,) = await self._of(self.connector.submit_batch_get([key], [memory]))
        return bytes(memory) if is_loaded else None

    def close(self) -> None:
        """Finish what is queued."""
        asyncio.get_running_loop().remove_reader(self.connector.event_fd())
        self.connector.close()


async def main(path: str) -> None:
    """Store three chunks, and load them from the store as the next process would open it."""
    # LMCache's form of a key: model@kv_rank@object_group@chunk_hash.
    chunks = {
        f"demo/model@00000000@0@{number:064x}": bytes([number]) * 65_536 for number in (1, 2, 3)
    }
    store = Store(path, "64MiB")
    print("stored:", await store.store(chunks))
    store.close()

    store = Store(path, "64MiB")
    print("found after a restart:", await store.exists([*chunks, "no such key"]))
    loaded = await asyncio.gather(*(store.load(key, 65_536) for key in chunks))
    print("equal:", loaded == list(chunks.values()))
    print("missed:", await store.load("no such key", 65_536))
    store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
