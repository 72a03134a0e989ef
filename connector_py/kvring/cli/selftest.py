"""`kvring selftest`: a chunk through a running server of LMCache into kvring, and back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from kvring.cli.failure import Failure
from kvring.cli.lmcache_server import Engine, Server, new_number
from kvring.cli.output import console, print_json, size_text, table
from kvring.cli.parameters import json_option

__all__ = ["selftest"]

_EPILOG = """
Exit status: 0 if the chunk came back from kvring as it was, 1 if not, 2 for wrong arguments.
"""

# Blocks of 16 tokens in the memory of the engine that stores, and of the one that loads.
_BLOCKS: Final = (64, 96)


@click.command(epilog=_EPILOG, short_help="Send a chunk through a running LMCache server and back.")
@click.option(
    "--rpc",
    "rpc_url",
    default="tcp://localhost:5555",
    show_default=True,
    metavar="URL",
    help="Where engines connect to the server: its --port.",
)
@click.option(
    "--http",
    "http_url",
    default="http://localhost:8080",
    show_default=True,
    metavar="URL",
    help="The HTTP server of it: its --http-port.",
)
@json_option
def selftest(rpc_url: str, http_url: str, as_json: bool) -> int:
    """Send a chunk through a running `lmcache server` into kvring, and back, and time each step.

    It does what an engine does: it registers memory, looks the chunk up, stores it, and waits until
    kvring has it. Then the chunk is dropped from L1, so that another engine with other memory gets
    it from kvring alone, and the bytes are compared. The chunk has 8 MiB with LMCache's default of
    256 tokens, is of the model test-model, and is removed again. Run it on the server's machine, by
    its user and with its Python. Other chunks are left alone.
    """
    steps: list[tuple[str, float]] = []

    @contextmanager
    def step(name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        steps.append((name, (time.perf_counter() - began_s) * 1000))

    server = Server(http_url)
    status = server.status()
    path = _store_of(status)
    chunk_tokens = status["chunk_size"]
    size_bytes = _through(server, step, rpc_url, http_url, chunk_tokens)
    if as_json:
        timed = [{"step": name, "ms": round(ms, 3)} for name, ms in steps]
        print_json({"path": path, "chunk_bytes": size_bytes, "steps": timed})
        return 0
    shown = table("step", "ms", right=("ms",))
    for name, ms in steps:
        shown.add_row(name, f"{ms:,.1f}")
    console().print(shown)
    click.echo(f"{size_text(size_bytes)} came back from kvring at {path} as they were")
    return 0


def _store_of(status: dict[str, Any]) -> str:
    """Return the paths of the store below a server.

    Raises:
        Failure: There is none, or it is not well.
    """
    adapters = status["storage_manager"].get("l2_adapters", [])
    if not adapters:
        message = "the server has no L2 adapter: start it with the --l2-adapter of `kvring config`"
        raise Failure(message)
    first = adapters[0]
    if first.get("type") != "kvring":
        kind = first.get("type", "one that does not say its type")
        message = f"the server's first L2 adapter is {kind}, not kvring's type plugin"
        raise Failure(f"{message}: start it with the --l2-adapter of `kvring config`")
    if first["problems"]:
        raise Failure(*(f"kvring is not well: {problem}" for problem in first["problems"]))
    return ", ".join(one["path"] for one in first["paths"])


def _through(server: Server, step: Any, rpc_url: str, http_url: str, chunk_tokens: int) -> int:
    """Do the steps, and return the length of the chunk."""
    number = new_number()
    before = server.stored()
    keys: list[dict[str, Any]] = []
    try:
        with Engine.connected(rpc_url, http_url, chunk_tokens, _BLOCKS[0]) as engine:
            request = engine.request(number, "store")
            with step("look up: a miss"):
                if engine.lookup(request):
                    raise Failure("the server has a chunk that nobody has stored")
            stored = engine.digests(request)
            with step("store in L1"):
                engine.store(request)
            with step("L1 to kvring"):
                keys = server.wait_for_stored(before)
            engine.end(request)
        with Engine.connected(rpc_url, http_url, chunk_tokens, _BLOCKS[1]) as engine:
            with step("drop from L1"):
                server.drop_from_memory(keys)
            request = engine.request(number, "load")
            had = engine.digests(request)
            with step("look up: kvring to L1"):
                if not engine.lookup(request):
                    raise Failure("kvring did not return the chunk: its log tells why")
            with step("load from L1"):
                engine.retrieve(request)
            loaded = engine.digests(request)
            engine.end(request)
            if not stored or loaded != stored or had == stored:
                raise Failure("the bytes that came back are not those that were stored")
            return engine.chunk_bytes
    finally:
        if keys:
            server.remove(keys)
