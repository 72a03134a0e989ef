"""A state machine over the whole Python connector: steps that hypothesis draws, and a model.

Here are the steps on a closed store, which commands do; those on an open one are in `opened`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvring._native import StoredChunks
from tools.stateful.opened import (
    CAPACITIES_MIB,
    KEYS,
    MIB,
    ROOMY_BYTES,
    TTL_S,
    OpenStoreMachine,
    every_moment_s,
    every_namespace,
    every_option,
    namespace_of,
)
from tools.stateful.process import content

__all__ = ["StoreMachine"]


class StoreMachine(OpenStoreMachine):
    """Sets, loads, deletes, kills, reopens and repairs a store."""

    @precondition(lambda self: not self.is_open and len(set(self.capacities_mib)) == 1)
    @rule(capacity_mib=st.sampled_from(CAPACITIES_MIB), after_s=every_moment_s)
    def kill_in_resize(self, capacity_mib: int, after_s: float) -> None:
        """Kill its process while a command brings the store to another capacity."""
        words = ("resize", "--json", "--yes", "--capacity", f"{capacity_mib}MiB")
        self.capacities_mib = [min(capacity_mib, self.capacities_mib[0])] * len(self.paths)
        self._kill_in(("document", *words, *self.paths), after_s)
        self.capacities_mib = [capacity_mib] * len(self.paths)
        # Which of both it has, nobody knows: a data file may be cut.
        self.opened_mib = []

    @precondition(lambda self: not self.is_open)
    @rule(namespace=every_namespace)
    def purge_closed(self, namespace: str) -> None:
        """Remove a namespace by command."""
        removed = self._purge_by_command(self.process, namespace)
        keys = {key for key in KEYS if namespace_of(key) == namespace}
        assert removed["pinned"] == []
        self._has_purged(keys, removed["keys"])

    @precondition(lambda self: not self.is_open)
    @rule()
    def list_closed(self) -> None:
        """List by command."""
        self._is_told(self._listed(self.paths))

    def _is_told(self, keys: set[str]) -> None:
        """Compare the keys that somebody says are stored with those that are."""
        for key, chunks in self.possible.items():
            assert (None in chunks) if key not in keys else (chunks != {None}), (key, chunks)

    def _listed(self, paths: list[str]) -> set[str]:
        keys = set()
        for path in paths:
            status, out, err = self.process.call("command", "ls", "--json", path)
            assert status == 0, err
            keys |= {json.loads(line)["key"] for line in out.splitlines()}
        return keys - {key for key in keys if key.startswith("flood")}

    @precondition(lambda self: not self.is_open)
    @rule(key=st.sampled_from(KEYS), damages=st.booleans())
    def verify_and_repair(self, key: str, damages: bool) -> None:
        """Verify and repair by command, with a damaged chunk perhaps."""
        broken = [one for one in self._stored() if damages and one[1]["key"] == key]
        for path, chunk in broken:
            with (Path(path) / chunk["file"]).open("r+b") as file:
                file.seek(chunk["offset_bytes"] + chunk["length_bytes"] // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
            self.possible[key] = {None}
        found = self.process.call("document", "verify", "--repair", "--json", *self.paths)
        assert found["damaged"] == found["removed"] == len(broken), found
        assert found["unreadable"] == 0, found
        self._is_told(self._listed(self.paths))

    def _stored(self) -> list[tuple[str, dict[str, Any]]]:
        return [(path, chunk) for path in self.paths for chunk in StoredChunks(Path(path))]

    @precondition(lambda self: not self.is_open)
    @rule(path_count=st.integers(1, 2))
    def copy_by_archive(self, path_count: int) -> None:
        """Export, import into a new store, and compare that."""
        self.copies += 1
        archive = str(self.directory / "archive")
        copies = [str(self.directory / f"copy-{self.copies}-{one}") for one in range(path_count)]
        status, _, err = self.process.call("command", "export", "--output", archive, *self.paths)
        assert status == 0, err
        words = ("import", "--json", "--capacity", "256MiB", "--input", archive)
        self.process.call("document", *words, *copies)
        copied = {}
        for path in copies:
            chunks = StoredChunks(Path(path))
            for chunk in chunks:
                copied[chunk["key"]] = chunks.read(keep=True)[2]
            assert chunks.damage() == []
            shutil.rmtree(path)
        copied = {key: one for key, one in copied.items() if not key.startswith("flood")}
        self._is_told(set(copied))
        for key, copy in copied.items():
            chunks_of_key = [one for one in self.possible[key] if one]
            assert copy in [content(key, one) for one in chunks_of_key], f"{key!r}: other bytes"

    @precondition(lambda self: not self.is_open)
    @rule(capacity_mib=st.sampled_from(CAPACITIES_MIB))
    def resize(self, capacity_mib: int) -> None:
        """Bring it to another capacity by command."""
        words = ("resize", "--json", "--yes", "--capacity", f"{capacity_mib}MiB")
        resized = self.process.call("document", *words, *self.paths)
        if len(set(self.capacities_mib)) > 1 or capacity_mib * MIB < ROOMY_BYTES:
            # Keys belong elsewhere then.
            self._may_be_gone()
        self.capacities_mib = [capacity_mib] * len(self.paths)
        if (certain := self._certain) is not None:
            assert resized["keys"] == len(certain)

    @precondition(lambda self: not self.is_open)
    @rule(options=every_option)
    def expire_all(self, options: dict[str, Any]) -> None:
        """Have all chunks be as old as `ttl`: nothing of them may be found."""
        for path in self.paths:
            with (Path(path) / "index.kvring").open("r+b") as index:
                # The records; docs/explanation/format.md.
                for offset in range(4096, index.seek(0, 2), 256):
                    index.seek(offset)
                    # Long ago.
                    index.write((1).to_bytes(6, "little"))
        self.possible = {key: {None} for key in KEYS}
        self._open({**options, "ttl": f"{TTL_S}s"})
