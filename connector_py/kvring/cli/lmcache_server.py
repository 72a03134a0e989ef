"""A running server of LMCache, as an engine and an operator meet it."""

import inspect
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlencode

from kvring.cli.failure import Failure

__all__ = ["Engine", "Server", "new_number"]

# LMCache's bench client gives this name to its model.
_MODEL: Final = "test-model"
_TIMEOUT_S: Final = 10.0
_DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.005
# Keys and values of 8 layers with 8 heads of 128 values of 16 bits: 8 MiB in 256 tokens.
_TOKEN_BYTES: Final = 2 * 8 * 8 * 128 * 2
_SHAPE: Final = "(2,{blocks},16,8,128):float16:8"
_TOKEN_IDS: Final = 1 << 31


class Server:
    """The HTTP server of LMCache's server."""

    def __init__(self, url: str) -> None:
        """Take its address, such as http://localhost:8080."""
        self._url = url.rstrip("/")

    def status(self) -> dict[str, Any]:
        """Return what the server says of itself.

        Raises:
            Failure: None answers there.
        """
        answer: dict[str, Any] = self._ask("GET", "/status")
        if "storage_manager" not in answer:
            raise Failure(f"{self._url}/status is no LMCache server's: --http says where it is")
        return answer

    def stored(self) -> list[dict[str, Any]]:
        """Return the keys of the test's model that its L2 adapter has.

        Raises:
            Failure: It cannot be asked for them.
        """
        found: list[dict[str, Any]] = []
        query = {"tier": "l2", "model_name": _MODEL}
        while True:
            page = self._ask("GET", f"/cache/objects?{urlencode(query)}")
            found += [entry["key"] for entry in page["entries"]]
            if page["next_page_token"] is None:
                return found
            query["page_token"] = page["next_page_token"]

    def wait_for_stored(self, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the keys that it has now and had not `before`, as soon as there are any.

        Raises:
            Failure: There are none in time.
        """

        def new() -> list[dict[str, Any]]:
            return [key for key in self.stored() if key not in before]

        why = "its log tells why, or kvring's `admit` or LMCache's store policy declines new chunks"
        found: list[dict[str, Any]] = _in_time(
            new, f"L1 has the chunk, and kvring did not get it in {_DEADLINE_S:g} s: {why}"
        )
        return found

    def drop_from_memory(self, keys: list[dict[str, Any]]) -> None:
        """Remove keys from L1 alone.

        Raises:
            Failure: Something uses them.
        """
        _in_time(
            lambda: self._delete("l1", keys) == len(keys),
            f"L1 did not let go of the chunk in {_DEADLINE_S:g} s",
        )

    def remove(self, keys: list[dict[str, Any]]) -> None:
        """Remove keys from L1 and from L2."""
        self._delete("all", keys)

    def _delete(self, tier: str, keys: list[dict[str, Any]]) -> int:
        answer = self._ask("DELETE", "/cache/objects", {"tier": tier, "keys": keys})
        return int(answer["deleted"])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(
                self._url + path,
                data=content,
                method=method,
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            told = error.read(500).decode(errors="replace")
            raise Failure(f"{self._url}{path} answers {error.code}: {told}") from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            message = f"no LMCache server answers at {self._url}: {reason}; start `lmcache server`"
            raise Failure(f"{message}, or use --http URL") from error


def _in_time(look: Callable[[], Any], otherwise: str) -> Any:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not (found := look()):
        if time.monotonic() > deadline_s:
            raise Failure(otherwise)
        time.sleep(_LOOK_EVERY_S)
    return found


class Engine:
    """What a serving engine is to the server: one with memory of its own, on this machine."""

    def __init__(self, client: Any, chunk_tokens: int) -> None:
        """Take LMCache's client; `connected` does."""
        self._client = client
        self._chunk_tokens = chunk_tokens

    @classmethod
    @contextmanager
    def connected(
        cls, rpc_url: str, http_url: str, chunk_tokens: int, blocks: int
    ) -> Iterator["Engine"]:
        """Lend one that is registered with the server.

        Args:
            rpc_url: Where engines connect.
            http_url: The HTTP server.
            chunk_tokens: Tokens of a chunk of the server.
            blocks: Blocks of the engine's memory; with another number they hold other bytes.

        Raises:
            Failure: LMCache is not installed here, or the server does not answer.
        """
        # It logs each layer that it registers.
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
        try:
            from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
            from lmcache.cli.commands.bench.server_bench.config import BenchConfig
        except ImportError as error:
            message = f"LMCache is needed here: {error}; run this with the server's Python"
            raise Failure(message) from error
        config = BenchConfig(
            rpc_url=rpc_url,
            http_url=http_url,
            mode="cpu",
            transfer_mode="lmcache_driven",
            tp_size=1,
            use_mla=False,
            num_tokens=chunk_tokens - 1,
            kvcache_shape_spec=_SHAPE.format(blocks=blocks),
            num_blocks=blocks,
            block_size=16,
        )
        client = ServerBenchClient(config, lambda _: None)
        try:
            client.start()
        except Exception as error:
            message = (
                f"engines cannot connect at {rpc_url}: {error}; --rpc says where they can, and "
            )
            raise Failure(f"{message}the server has to support lmcache_driven transfers") from error
        try:
            yield cls(client, chunk_tokens)
        finally:
            client.close()

    @property
    def chunk_bytes(self) -> int:
        """Bytes of its chunk."""
        return self._chunk_tokens * _TOKEN_BYTES

    def request(self, number: int, kind: str) -> Any:
        """Return a request for one chunk, that of a number."""
        more: dict[str, Any] = {}
        if _takes(self._client.create_request, "token_ids"):
            more["token_ids"] = [number, *range(1, self._chunk_tokens)]
        return self._client.create_request(number, f"kvring-{number}-{kind}", kind, **more)

    def lookup(self, request: Any) -> int:
        """Return how many of its chunks the server has, in L1 by now.

        Raises:
            Failure: It does not answer.
        """
        found = self._client.lookup(request)
        if not found.succeeded:
            raise Failure(f"the lookup failed: {found.error}")
        return int(found.hit_chunks)

    def store(self, request: Any) -> None:
        """Have the server take the chunk.

        Raises:
            Failure: It does not.
        """
        self._need(self._client.store(request, 0, self._chunk_tokens), "take")

    def retrieve(self, request: Any) -> None:
        """Have the server fill the memory of the chunk.

        Raises:
            Failure: It does not.
        """
        self._need(self._client.retrieve(request, 0, self._chunk_tokens), "return")

    def digests(self, request: Any) -> list[str]:
        """Return digests of the memory of the chunk."""
        compute = self._client.compute_checksums
        if _takes(compute, "operation"):
            found = compute(request, 0, self._chunk_tokens, operation="store") or {}
            return [digest for of_rank in found.values() for digest in of_rank]
        return list(compute(request, 0, self._chunk_tokens) or [])

    def end(self, request: Any) -> None:
        """Tell the server that the request is over."""
        end = getattr(self._client, "end_session", None) or self._client.release_request
        end(request)

    @staticmethod
    def _need(result: Any, what: str) -> None:
        if result is None or not result.succeeded:
            raise Failure(f"the server did not {what} the chunk: its log tells why")


def _takes(method: Callable[..., Any], name: str) -> bool:
    """Tell whether LMCache is that of 0.5.7 on, whose client takes more."""
    return name in inspect.signature(method).parameters


def new_number() -> int:
    """Return a token that no prompt has begun with, most likely."""
    return secrets.randbelow(_TOKEN_IDS)
