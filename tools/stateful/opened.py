"""The steps of the state machine on an open store, and the model of what its keys may have.

The store lives in a process of its own, so that it can be killed. The model knows for each key
which chunks it may have: one, or several where a batch was under way at a kill, and none where
eviction may have come.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tools.stateful.process import Chunk, StoreProcess

MIB = 1 << 20
_NAMESPACES = ("model/a", "model/b@salt", "")
KEYS = (
    *(f"model/a@00000000@0@{number:064x}" for number in range(4)),
    *(f"model/b@00000000@0@{number:064x}@salt" for number in range(3)),
    "key",
    "\N{SNOWMAN}\n\0",
    "long" * 800,
)
_LENGTHS = (1, 4095, 4096, 4097, 20_000, 300_000, MIB)
# From here on all chunks of the model fit at any one path, and more: none is evicted.
ROOMY_BYTES = 64 * MIB
CAPACITIES_MIB = (16, 32, 64, 256, 1024)
TTL_S = 7 * 86_400

_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)
_chunks = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(_LENGTHS)), min_size=1, max_size=6
)
every_namespace = st.sampled_from(_NAMESPACES)
_capacities = st.lists(st.sampled_from(CAPACITIES_MIB), min_size=3, max_size=3)
every_option = st.fixed_dictionaries(
    {
        # A store that is refused is no hit.
        "admit": st.just("always"),
        "durability": st.sampled_from(["best_effort", "persistent"]),
        "eviction": st.sampled_from(["adaptive", "lfu", "lru", "fifo", "mru"]),
        "engine": st.sampled_from(["auto", "posix"]),
        "io_threads": st.sampled_from([1, 2, "auto"]),
        "lease_s": st.sampled_from([0, 10]),
        "load_deadline_ms": st.sampled_from(["off", 60_000]),
        "ttl": st.sampled_from(["off", f"{TTL_S}s"]),
    }
)
# Within the time that an open, a close or a command takes.
every_moment_s = st.floats(0, 0.05)

_Batch = list[tuple[str, int]]


def namespace_of(key: str) -> str:
    """Return the namespace of a key of this machine."""
    return next((name for name in _NAMESPACES if name and key.startswith(name[:7])), "")


class OpenStoreMachine(RuleBasedStateMachine):
    """Sets, loads, deletes, pins, purges, kills and reopens a store."""

    # Kept from one example to the next: a start takes longer than most rules.
    _spare: ClassVar[list[StoreProcess]] = []

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kvring-stateful-"))
        self.process = self._new_process()
        self.possible: dict[str, set[Chunk | None]] = {key: {None} for key in KEYS}
        self.pinned: set[str] = set()
        self.is_open = False
        self.opened_mib: list[int] = []
        self.version = 0
        self.evicted = 0
        self.copies = 0

    def _new_process(self) -> StoreProcess:
        return self._spare.pop() if self._spare else StoreProcess()

    @classmethod
    def end_processes(cls) -> None:
        """End those that are kept."""
        while cls._spare:
            cls._spare.pop().kill()

    # --- the model ---

    @property
    def _is_roomy(self) -> bool:
        return min(self.capacities_mib) * MIB >= ROOMY_BYTES

    @property
    def _certain(self) -> set[str] | None:
        """The keys that are stored, if that is known."""
        if any(len(chunks) > 1 for chunks in self.possible.values()):
            return None
        return {key for key, chunks in self.possible.items() if chunks != {None}}

    def _may_be_gone(self, keys: Any = KEYS) -> None:
        for key in keys:
            if key not in self.pinned:
                self.possible[key].add(None)

    def _note_evictions(self) -> None:
        """Whatever was evicted: it is not told which."""
        evicted = self.process.call("counts")["evicted"]
        if evicted != self.evicted:
            assert not self._is_roomy, "a chunk was evicted although all fit"
            self.evicted = evicted
            self._may_be_gone()

    def _with_versions(self, batch: _Batch) -> list[tuple[str, Chunk]]:
        chunks = []
        for key, length_bytes in batch:
            self.version += 1
            chunks.append((key, (self.version, length_bytes)))
        return chunks

    def _look(self) -> None:
        """Load every key, with each length that its chunk may have."""
        wanted = [(key, [one for one in self.possible[key] if one]) for key in KEYS]
        found = self.process.call("get", wanted)
        are_stored = self.process.call("exists", list(KEYS))
        # A store that is nearly full evicts ahead, after the SET was answered.
        self._note_evictions()
        for key, chunk, is_stored in zip(KEYS, found, are_stored, strict=True):
            possible = self.possible[key]
            assert chunk in possible, f"{key!r} has {chunk}, possible: {possible}"
            assert is_stored == (chunk is not None) or (
                not is_stored and not self._is_roomy and key not in self.pinned
            ), f"{key!r}: EXISTS says {is_stored}, and GET found {chunk}"
            self.possible[key] = {chunk if is_stored else None}
        self._note_evictions()

    # --- opening and closing ---

    def _open_call(self, options: dict[str, Any]) -> tuple[Any, ...]:
        capacity = [f"{one}MiB" for one in self.capacities_mib]
        return "open", self.paths, capacity, {**options, "layout": self.layout, "min_free": 0}

    def _open(self, options: dict[str, Any]) -> None:
        told = self.process.call(*self._open_call(options))
        self.is_open, self.evicted = True, told["evicted"]
        damage = {name: told[name] for name in ("reset", "stale")}
        if self.capacities_mib == self.opened_mib:
            # With less capacity, data files are cut.
            damage["out_of_range"] = told["out_of_range"]
        assert not any(damage.values()), (damage, told)
        self.opened_mib = self.capacities_mib
        if told["moved"] or told["evicted"]:
            self._may_be_gone()
        self._look()

    @initialize(
        layout=st.sampled_from(["extents", "files"]),
        path_count=st.sampled_from([1, 1, 2, 3]),
        capacities_mib=_capacities,
        options=every_option,
    )
    def first_open(
        self, layout: str, path_count: int, capacities_mib: list[int], options: dict[str, Any]
    ) -> None:
        """Make the store."""
        self.layout = layout
        self.paths = [str(self.directory / f"path-{number}") for number in range(path_count)]
        self.capacities_mib = capacities_mib[:path_count]
        self._open(options)

    @precondition(lambda self: not self.is_open)
    @rule(capacities_mib=st.none() | _capacities, options=every_option)
    def reopen(self, capacities_mib: list[int] | None, options: dict[str, Any]) -> None:
        """Open it again, with other options perhaps."""
        if capacities_mib is not None:
            self.capacities_mib = capacities_mib[: len(self.paths)]
            if not self._is_roomy:
                self._may_be_gone()
        self._open(options)

    @precondition(lambda self: self.is_open)
    @rule(under_way=st.none() | _chunks)
    def close(self, under_way: _Batch | None) -> None:
        """Close it, in the middle of a batch perhaps."""
        if under_way is not None:
            chunks = self._with_versions(under_way)
            self.process.call("set_and_leave", chunks)
            for key, chunk in chunks:
                self.possible[key].add(chunk)
            if not self._is_roomy:
                self._may_be_gone()
        closed = self.process.call("close", 0.0 if under_way else 5.0)
        assert closed["shutdown_clean"], closed
        assert under_way or not closed["partial_flush"], closed
        self._has_closed()

    def _has_closed(self) -> None:
        self.is_open = False
        self.pinned.clear()

    @precondition(lambda self: self.is_open)
    @rule(sets=_chunks | st.just([]), deletes=_keys | st.just([]), waits=st.booleans())
    def kill(self, sets: _Batch, deletes: list[str], waits: bool) -> None:
        """Kill its process, in the middle of batches perhaps."""
        self._note_evictions()
        chunks = self._with_versions(sets)
        for method, batch in (("set_and_leave", chunks), ("delete_and_leave", deletes)):
            if batch:
                (self.process.call if waits else self.process.begin)(method, batch)
        self.process.kill()
        for key, chunk in chunks:
            self.possible[key].add(chunk)
        for key in deletes:
            self.possible[key].add(None)
        if not self._is_roomy:
            self._may_be_gone()
        self.process = self._new_process()
        self._has_closed()

    def _kill_in(self, call: tuple[Any, ...], after_s: float) -> None:
        """Kill its process in the middle of a call, or before or after it."""
        self.process.begin(*call)
        time.sleep(after_s)
        self.process.kill()
        self.process = self._new_process()
        if not self._is_roomy:
            self._may_be_gone()
        self._has_closed()

    @precondition(lambda self: not self.is_open)
    @rule(options=every_option, after_s=every_moment_s)
    def kill_in_open(self, options: dict[str, Any], after_s: float) -> None:
        """Kill its process while it opens the store."""
        self._kill_in(self._open_call(options), after_s)

    @precondition(lambda self: self.is_open)
    @rule(after_s=every_moment_s)
    def kill_in_close(self, after_s: float) -> None:
        """Kill its process while it closes the store."""
        self._note_evictions()
        self._kill_in(("close", 5.0), after_s)

    # --- an open store ---

    @precondition(lambda self: self.is_open)
    @rule(batch=_chunks)
    def store(self, batch: _Batch) -> None:
        """Store chunks; a key may come twice."""
        chunks = self._with_versions(batch)
        ok, error, results = self.process.call("set", chunks)
        assert ok == all(results), (error, results)
        assert ok or not self._is_roomy, error
        for (key, chunk), is_stored in zip(chunks, results, strict=True):
            if is_stored:
                self.possible[key] = {chunk}
            else:
                self.possible[key] |= {chunk, None}
                self.pinned.discard(key)
        self._note_evictions()

    @precondition(lambda self: self.is_open)
    @rule(keys=_keys)
    def delete(self, keys: list[str]) -> None:
        """Remove keys."""
        assert self.process.call("delete", keys) == [True] * len(keys)
        for key in keys:
            self.possible[key] = {None}
            self.pinned.discard(key)
        assert self.process.call("exists", keys) == [False] * len(keys)

    @precondition(lambda self: self.is_open)
    @rule()
    def look(self) -> None:
        """Load all."""
        self._look()

    @precondition(lambda self: self.is_open)
    @rule(keys=_keys)
    def look_at_prefix(self, keys: list[str]) -> None:
        """Ask how many leading keys are stored."""
        results = self.process.call("prefix", keys)
        assert results == sorted(results, reverse=True)
        assert all(
            self.possible[key] != {None}
            for key, is_stored in zip(keys, results, strict=True)
            if is_stored
        )
        if (certain := self._certain) is not None and self._is_roomy:
            missing = [key not in certain for key in keys]
            assert results.count(True) == [*missing, True].index(True)

    @precondition(lambda self: self.is_open)
    @rule(keys=_keys, is_pin=st.booleans())
    def pin(self, keys: list[str], is_pin: bool) -> None:
        """Pin keys, or take pins back."""
        results = self.process.call("pin" if is_pin else "unpin", keys)
        for key, result in zip(keys, results, strict=True):
            if is_pin and result:
                self.possible[key].discard(None)
                assert self.possible[key], f"{key!r} is pinned, and not there"
                self.pinned.add(key)
            elif is_pin and self._is_roomy:
                assert None in self.possible[key], f"{key!r} is there, and not pinned"
            elif not is_pin and self._is_roomy:
                assert result == (key in self.pinned), f"{key!r}: {result}"
            if not is_pin:
                self.pinned.discard(key)

    @precondition(lambda self: self.is_open)
    @rule(keys=_keys)
    def touch_and_expire(self, keys: list[str]) -> None:
        """Count uses, and have what is old go: nothing is."""
        self.process.call("touch", keys)
        assert self.process.call("expire") == 0

    @precondition(lambda self: self.is_open)
    @rule(namespace=every_namespace, by_socket=st.booleans())
    def purge(self, namespace: str, by_socket: bool) -> None:
        """Remove a namespace, by the owner itself or as a command asks it."""
        if by_socket:
            helper = self._new_process()
            removed = self._purge_by_command(helper, namespace)
            self._spare.append(helper)
        else:
            removed = self.process.call("purge", namespace)
        keys = {key for key in KEYS if namespace_of(key) == namespace}
        assert set(removed["pinned"]) <= self.pinned & keys
        if self._is_roomy:
            assert set(removed["pinned"]) == self.pinned & keys
        self._has_purged(keys - self.pinned, removed["keys"])

    def _purge_by_command(self, process: Any, namespace: str) -> Any:
        words = ("purge", "--yes", "--json", "--namespace", namespace, *self.paths)
        status, out, err = process.call("command", *words)
        if not out:
            assert "has no namespace" in err, (status, err)
            return {"keys": 0, "pinned": []}
        removed = json.loads(out)
        assert status == (4 if removed["pinned"] else 0), (removed, err)
        return removed

    def _has_purged(self, keys: set[str], count: int) -> None:
        if (certain := self._certain) is not None and self._is_roomy:
            assert count == len(certain & keys), (count, certain & keys)
        for key in keys:
            self.possible[key] = {None}

    @precondition(lambda self: self.is_open and not self._is_roomy)
    @rule(count=st.integers(4, 40))
    def flood(self, count: int) -> None:
        """Store what nobody asks for again; it is purged, so that it does not count elsewhere."""
        for number in range(count):
            self.process.call("set", [(f"flood@0@0@{number:x}", (self.version, 2 * MIB))])
        self._note_evictions()
        self.process.call("purge", "flood")

    @precondition(lambda self: self.is_open)
    @rule()
    def check(self) -> None:
        """Compare the accounts."""
        assert self.process.call("problems") == []

    def teardown(self) -> None:
        """Look once more, and leave nothing."""
        try:
            if self.is_open:
                self._look()
                assert self.process.call("problems") == []
                self.process.call("close", 5.0)
                self.is_open = False
        finally:
            if self.is_open:
                self.process.kill()
            else:
                self._spare.append(self.process)
            shutil.rmtree(self.directory)
