"""What the tests with SGLang do in processes of their own (processes.py)."""

import random
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from kvring import owner_socket
from kvring.ranks import segments, server
from kvring.ranks.reader import _Link
from tests.python.conftest import HANG_DEADLINE_S
from tests.python.engines.processes import tell
from tests.python.engines.sglang_host import Rank, page_keys

# Of the random jobs.
UNIVERSE = 400
MOST_KEYS = 7


torch.set_num_threads(1)


def answer(channel: Any, path: str, shape: Sequence[str], more: dict[str, Any]) -> None:
    """Be a rank, and do what is asked for, until nothing is any more."""
    _give_up_on_nobody()
    rank = AskedRank(path, *shape, **more)
    tell(channel, "ready")
    while True:
        try:
            method, arguments = channel.recv()
        except EOFError:
            break
        tell(channel, getattr(rank, method)(*arguments))
    rank.close()


def _give_up_on_nobody() -> None:
    """Let whoever waits in vain for another rank do so until the test takes it for a hang."""
    for module, deadline in (
        (owner_socket, "_REQUEST_DEADLINE_S"),
        (segments, "ANSWER_DEADLINE_S"),
        (server, "_SEGMENT_DEADLINE_S"),
    ):
        assert hasattr(module, deadline), deadline
        # An answer waits half as long for one that loads the same.
        setattr(module, deadline, 3 * HANG_DEADLINE_S)


class AskedRank(Rank):
    """A rank that another process asks."""

    _held: list[Any]

    def exists(self, keys: list[str]) -> tuple[int, list[bool]]:
        """Say how many leading pages there are, and which."""
        backend = self.backend
        return backend.batch_exists(keys), [backend.exists(key) for key in keys]

    def store_by_all_calls(self, keys: list[str]) -> list[Any]:
        """Try to store pages, by each call that there is."""
        rows = self.pages.rows(range(len(keys)))
        self.pages.fill(rows, keys, version=99)
        page = torch.zeros(self.pages.page_bytes, dtype=torch.uint8)
        transfer = PoolTransfer(PoolName.KV, host_indices=rows, keys=keys)
        return [
            self.backend.batch_set_v1(keys, rows),
            self.backend.batch_set_v2([transfer])[PoolName.KV],
            self.backend.set(keys[0], page),
            self.backend.batch_set(keys, [page] * len(keys)),
        ]

    def store_states(self, keys: list[str], version: int) -> list[bool]:
        """Store a Mamba state for each key."""
        assert self.states is not None
        transfer = self._of_states(keys)
        self.states.fill(transfer.host_indices, keys, version)
        stored: list[bool] = self.backend.batch_set_v2([transfer])["mamba"]
        return stored

    def load_states(self, keys: list[str], version: int) -> list[bool | None]:
        """Load a Mamba state for each key; None has other bytes."""
        assert self.states is not None
        transfer = self._of_states(keys)
        self.states.wipe(transfer.host_indices)
        loaded = self.backend.batch_get_v2([transfer])["mamba"]
        right = self.states.hold(transfer.host_indices, keys, version)
        return [ok and (good or None) for ok, good in zip(loaded, right, strict=True)]

    def take_segments(self, path: str, keys: list[str]) -> int:
        """Hold a segment for each key, as a reader does before it copies; return how many."""
        form = self.form()
        _, lengths = self.pages.pool.get_page_buffer_meta(self.pages.rows([0]))
        self._held = [_Link(Path(path), None) for _ in keys]
        for link, key in zip(self._held, keys, strict=True):
            link.send({"load": [form.prefix, [key], list(lengths)]})
        return len({link.receive()[0] for link in self._held})

    def _of_states(self, keys: list[str]) -> Any:
        return PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(len(keys)), keys=keys)


def work(channel: Any, path: str, shape: Sequence[str], more: dict[str, Any], seed: str) -> None:
    """Look at all pages that there may be, then do random jobs until this process is killed.

    It tells which pages are stored, before it goes on, and of each job.
    """
    rank = Rank(path, *shape, **more)
    keys = page_keys(UNIVERSE)
    room = rank.pages.pool.page_num // 2
    found: list[str] = []
    for first in range(0, UNIVERSE, room):
        batch = keys[first : first + room]
        loaded = rank.load(batch)
        assert None not in loaded, "wrong bytes"
        found += [key for key, ok in zip(batch, loaded, strict=True) if ok]
        leading = loaded.index(False) if False in loaded else len(batch)
        assert rank.backend.batch_exists(batch) == leading
    tell(channel, ("found", found))
    stored = set(found)
    told = threading.Lock()

    def store_and_ask() -> None:
        choose = random.Random(f"{seed}/store")
        while True:
            batch = choose.sample(keys, choose.randint(1, MOST_KEYS))
            if choose.random() < 0.7:
                assert rank.store(batch) == [True] * len(batch)
                stored.update(batch)
                with told:
                    tell(channel, ("stored", batch))
            else:
                batch.sort(key=stored.__contains__, reverse=True)
                known = sum(key in stored for key in batch)
                assert rank.backend.batch_exists(batch) >= known, "it is lost"
                with told:
                    tell(channel, ("asked", []))

    def load() -> None:
        choose = random.Random(f"{seed}/load")
        while True:
            batch = choose.sample(keys, choose.randint(1, MOST_KEYS))
            known = [key in stored for key in batch]
            loaded = rank.load(batch, first_row=room)
            assert None not in loaded, "wrong bytes"
            assert not any(there and not ok for there, ok in zip(known, loaded, strict=True))
            with told:
                tell(channel, ("loaded", []))

    def guarded() -> None:
        try:
            load()
        except BaseException:  # noqa: BLE001 - the test fails with it
            with told:
                channel.send((False, traceback.format_exc()))

    threading.Thread(target=guarded, daemon=True).start()
    store_and_ask()
