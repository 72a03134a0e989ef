"""LMCache's bench client for a running server: how it is started and what it reports.

As a program it is that client itself, which then asks every `POLL_INTERVAL_S`.
"""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata

from tests.support.lmcache_command import (
    DEADLINE_S,
    DeploymentError,
    lmcache_command,
    lmcache_environment,
)

CHUNKS_PER_REQUEST = 8
TOKENS_PER_REQUEST = 256 * CHUNKS_PER_REQUEST

# The client itself asks every 50 ms whether its prefix is there: most loads take less.
POLL_INTERVAL_S = 0.0005

# From 0.5.7 on it tells the number of ranks too.
_CHECKSUM = rf"CHECKSUM: ([0-9a-f]+) \((?:1 ranks, )?{CHUNKS_PER_REQUEST} chunks\)"


@dataclass(frozen=True)
class Request:
    """What the client reported of one request: the cold or the warm pass of a sequence."""

    hit_chunks: int = 0
    total_chunks: int = 0
    lookup_ms: float = field(default=0.0, compare=False)
    checksum: str | None = None
    retrieved_tokens: int = 0
    stored_tokens: int = 0


@dataclass(frozen=True)
class ClientRun:
    """One run of the client: its requests by sequence, and the sequences it found matching."""

    cold: dict[int, Request]
    warm: dict[int, Request]
    matching_sequences: list[int]


def run_client(
    rpc_url: str, http_url: str, request_count: int, block_count: int, *, is_timed: bool = False
) -> ClientRun:
    """Run the client against a server and return what it reported.

    ``is_timed``: it asks so often that ``lookup_ms`` is what a request waits for.
    """
    program = [sys.executable, "-m", __name__] if is_timed else lmcache_command()
    command = [
        *program,
        *("bench", "server", "--mode", "cpu", "--transfer-mode", "lmcache_driven"),
        *("--rpc-url", rpc_url, "--url", http_url),
        *("--num-tokens", str(TOKENS_PER_REQUEST)),
        *("--kvcache-shape-spec", f"(2,{block_count},16,8,128):float16:8"),
        *("--start", "0", "--end", str(request_count), "--interval", "0.2"),
        *_block_options(),
    ]
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=lmcache_environment(),
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        raise DeploymentError(f"the client ran past {DEADLINE_S} s\n{output}") from None
    output = finished.stdout.decode(errors="replace")
    if finished.returncode != 0:
        raise DeploymentError(f"the client ended with status {finished.returncode}\n{output}")
    return parse_output(output)


def _block_options() -> list[str]:
    """Have each request use other blocks, or all would have the same content.

    From 0.5.7 on the client gives blocks back after each request, and takes the first free ones.
    """
    takes_blocks_back = any(
        path.match("server_bench/allocator.py") for path in metadata.files("lmcache") or []
    )
    return ["--block-allocation", "random"] if takes_blocks_back else []


def parse_output(output: str) -> ClientRun:
    """Read the client's lines about requests, and refuse any that is not a success."""
    fields: dict[tuple[str, int], dict[str, float | str]] = {}
    matching: list[int] = []
    for line in output.splitlines():
        if not line.startswith("  [seq "):
            continue
        if verdict := re.fullmatch(r"  \[seq (\d+)\] CHECKSUM MATCH OK", line):
            matching.append(int(verdict[1]))
            continue
        request = re.fullmatch(r"  \[seq (\d+)/(cold|warm)\] (.*)", line)
        details = _parse_details(request[3]) if request else None
        if request is None or details is None:
            raise DeploymentError(f"the client reported: {line.strip()}\n{output}")
        fields.setdefault((request[2], int(request[1])), {}).update(details)
    return ClientRun(
        cold=_requests_of("cold", fields),
        warm=_requests_of("warm", fields),
        matching_sequences=matching,
    )


def _parse_details(text: str) -> dict[str, float | str] | None:
    if found := re.fullmatch(r"LOOKUP: (\d+)/(\d+) chunks hit \((.*) ms\)", text):
        return {
            "hit_chunks": int(found[1]),
            "total_chunks": int(found[2]),
            "lookup_ms": float(found[3]),
        }
    if found := re.fullmatch(_CHECKSUM, text):
        return {"checksum": found[1]}
    if found := re.fullmatch(r"RETRIEVE: retrieved \((\d+) tokens, .*\)", text):
        return {"retrieved_tokens": int(found[1])}
    if found := re.fullmatch(r"STORE: stored \((\d+) tokens, .*\)", text):
        return {"stored_tokens": int(found[1])}
    return None


def _requests_of(
    phase: str, fields: dict[tuple[str, int], dict[str, float | str]]
) -> dict[int, Request]:
    return {
        sequence: Request(**details)  # type: ignore[arg-type]
        for (of_phase, sequence), details in fields.items()
        if of_phase == phase
    }


def _main() -> None:
    from lmcache.cli.commands.bench.server_bench import helpers
    from lmcache.cli.main import main

    poll = helpers._poll_prefetch_status
    most_polls, interval_s = poll.__defaults__
    poll.__defaults__ = (round(most_polls * interval_s / POLL_INTERVAL_S), POLL_INTERVAL_S)
    main()


if __name__ == "__main__":
    _main()
