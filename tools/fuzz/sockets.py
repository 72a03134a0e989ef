"""Fuzz target: hostile bytes on the socket of a store's owner, also as reads of another rank.

The threads of the owner raise nothing, and whoever asks next is answered.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from kvring import owner_socket
from kvring.engine_store import EngineStore
from kvring.owner_address import at_file
from kvring.owner_requests import ask
from kvring.ranks.segments import REQUEST
from kvring.ranks.server import ReadServer

_DEADLINE_S = 30.0
_WORDS = ("load", "exists", "count_leading", "done", "ask", "stats", "purge", "namespace", REQUEST)
_NUMBERS = (0, 1, -1, 4096, -4096, 32 << 20, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 0.5, 1e300)


@cache
def _owner() -> tuple[Path, EngineStore, ReadServer]:
    path = Path(tempfile.mkdtemp()) / "store"
    options = {"path": str(path), "capacity": "16MiB", "engine": "posix", "min_free": 0}
    store = EngineStore("the fuzz target", options)
    return path, store, ReadServer(store)


class _Choices:
    """Choices out of the bytes of an input; behind its end all are 0."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def take(self, length: int) -> bytes:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def below(self, end: int) -> int:
        return int.from_bytes(self.take(1), "little") % end

    def value(self, depth: int = 3) -> Any:
        match self.below(8):
            case 0:
                return _WORDS[self.below(len(_WORDS))]
            case 1:
                return _NUMBERS[self.below(len(_NUMBERS))]
            case 2 if depth:
                return [self.value(depth - 1) for _ in range(self.below(5))]
            case 3 if depth:
                words = [_WORDS[self.below(len(_WORDS))] for _ in range(self.below(3))]
                return {word: self.value(depth - 1) for word in words}
            case 4:
                return self.take(self.below(24)).decode(errors="replace")
            case 5:
                return (None, True, False)[self.below(3)]
            case _:
                return self.below(256)

    def request(self) -> bytes:
        keys = [f"key{self.below(4)}" for _ in range(self.below(4))]
        lengths = [self.value(1) for _ in keys]
        match self.below(7):
            case 0:
                return self.take(self.below(200))
            case 1:
                request: Any = {"load": ["", keys, lengths]}
            case 2:
                request = {"exists": ["", keys]}
            case 3:
                request = {"count_leading": ["", keys]}
            case 4:
                request = {"done": self.value(1)}
            case 5:
                request = {_WORDS[self.below(len(_WORDS))]: self.value()}
            case _:
                request = self.value()
        return json.dumps(request).encode() + b"\n"


def run(data: bytes) -> None:
    """Send what the input says, hang up, and ask as one should."""
    path, store, _ = _owner()
    raised: list[threading.ExceptHookArgs] = []
    threading.excepthook = raised.append
    choices = _Choices(data)
    with at_file(path) as (address, _), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_DEADLINE_S)
        connection.connect(address)
        try:
            if choices.below(4):
                connection.sendall(json.dumps({"ask": REQUEST}).encode() + b"\n")
                _, descriptors, *_ = socket.recv_fds(connection, 3, 1)
                for descriptor in descriptors:
                    socket.close(descriptor)
            for _ in range(choices.below(6)):
                connection.sendall(choices.request())
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
    answer = ask(path, None, {"ask": "stats"})
    if raised or answer["stats"]["keys"] != store.connector.stats()["keys"]:
        raise AssertionError(f"{raised or answer}")


def main() -> None:
    """Fuzz, as libFuzzer's arguments say."""
    import atheris

    for function in (*vars(ReadServer).values(), *vars(owner_socket.OwnerSocket).values()):
        if isinstance(function, FunctionType):
            atheris.instrument_func(function)
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
