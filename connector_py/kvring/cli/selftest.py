"""`kvring selftest`: a chunk through a running server of LMCache, or vLLM, and back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.lmcache_server import Engine, Server, new_number
from kvring.cli.output import console, count_text, print_json, size_text, table
from kvring.cli.owner import need_owner
from kvring.cli.parameters import STORE_PATH, json_option
from kvring.cli.vllm_server import VllmServer, new_prompt

__all__ = ["selftest"]

# Blocks of 16 tokens in the memory of the engine that stores, and of the one that loads.
_BLOCKS: Final = (64, 96)
_PROMPT_TOKENS: Final = 2048
# Of what vLLM answers.
_ANSWER_ROOM: Final = 16
_DEADLINE_S: Final = 30.0
# Without anything new that long, vLLM has stored what it stores.
_SETTLED_S: Final = 0.5


def _web(_context: click.Context, _parameter: click.Parameter, url: str | None) -> str | None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} does not begin with http:// or https://")
    return url


@click.command(short_help="Send a chunk through a running server and back.")
@click.option(
    "--rpc",
    "rpc_url",
    default="tcp://localhost:5555",
    show_default=True,
    metavar="URL",
    help="Address of the server's --port.",
)
@click.option(
    "--http",
    "http_url",
    callback=_web,
    default="http://localhost:8080",
    show_default=True,
    metavar="URL",
    help="Address of its --http-port.",
)
@click.option(
    "--vllm",
    "vllm_url",
    callback=_web,
    metavar="URL",
    help="Test this vLLM instead, which has the store at PATH.",
)
@click.argument("path", required=False, type=STORE_PATH)
@json_option
def selftest(
    rpc_url: str, http_url: str, vllm_url: str | None, path: Path | None, as_json: bool
) -> int:
    """Send a chunk through a running `lmcache server` into kvring and back, and time each step.

    The chunk is of the model test-model, and is removed. Run it on the server's machine, as its
    user and with its Python. With --vllm it sends a random prompt twice, and resets vLLM's prefix
    cache in between; vLLM needs VLLM_SERVER_DEV_MODE=1, and the chunks stay.
    """
    if (vllm_url is None) != (path is None):
        raise WrongArguments("--vllm URL goes with the PATH of its store, and PATH with --vllm")
    if vllm_url is not None and path is not None:
        return _ask_vllm(VllmServer(vllm_url), path, as_json=as_json)
    steps: list[tuple[str, float]] = []

    @contextmanager
    def step(name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        steps.append((name, (time.perf_counter() - began_s) * 1000))

    server = Server(http_url)
    status = server.status()
    store = _store_of(status)
    chunk_tokens = status["chunk_size"]
    size_bytes = _through(server, step, rpc_url, http_url, chunk_tokens)
    if as_json:
        timed = [{"step": name, "ms": round(ms, 3)} for name, ms in steps]
        print_json({"path": store, "chunk_bytes": size_bytes, "steps": timed})
        return 0
    _print(steps)
    click.echo(f"{size_text(size_bytes)} came back from kvring at {store} unchanged")
    return 0


def _print(steps: list[tuple[str, float]]) -> None:
    shown = table("step", "ms", right=("ms",))
    for name, ms in steps:
        shown.add_row(name, f"{ms:,.1f}")
    console().print(shown)


def _ask_vllm(server: VllmServer, path: Path, *, as_json: bool) -> int:
    model, most_tokens = server.model()
    before = _counters(path)
    prompt = new_prompt(min(_PROMPT_TOKENS, most_tokens - _ANSWER_ROOM))
    cold = server.ask(model, prompt)
    stored = _wait_for_stored(path, before)
    server.forget()
    warm = server.ask(model, prompt)
    loaded = _counters(path)["get_hits"] - stored["get_hits"]
    if not loaded:
        message = f"{path} was asked for nothing: vLLM found the prompt elsewhere, or in no tier"
        raise Failure(message)
    chunks = stored["set_stored"] - before["set_stored"]
    steps = [
        ("first token, computed", cold.first_token_ms),
        ("first token, from kvring", warm.first_token_ms),
    ]
    is_equal = cold.text == warm.text
    if as_json:
        timed = [{"step": name, "ms": round(ms, 3)} for name, ms in steps]
        counts = {"tokens": len(prompt), "stored_chunks": chunks, "loaded_chunks": loaded}
        print_json({"path": str(path), **counts, "is_equal": is_equal, "steps": timed})
        return 0
    _print(steps)
    counted = f"{count_text(loaded, 'chunk')} of {chunks:,} came back from kvring at {path}"
    answers = "the same answer" if is_equal else "another answer, as rounding may give"
    click.echo(f"{counted}; {answers}")
    return 0


def _counters(path: Path) -> dict[str, int]:
    stats: dict[str, int] = need_owner(path, None, ask="stats")["stats"]
    return stats


def _wait_for_stored(path: Path, before: dict[str, int]) -> dict[str, int]:
    """Return the counters when the store has got something new, and nothing is under way."""
    deadline_s = time.monotonic() + _DEADLINE_S
    last = before
    while True:
        time.sleep(_SETTLED_S)
        now = _counters(path)
        is_still = now["in_flight"] == 0 and now["set_stored"] == last["set_stored"]
        if is_still and now["set_stored"] > before["set_stored"]:
            return now
        if time.monotonic() > deadline_s:
            message = (
                f"{path} was given nothing new in {_DEADLINE_S:g} s: has this vLLM that store?"
            )
            raise Failure(message)
        last = now


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
                    raise Failure("the server reports a chunk that was never stored")
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
