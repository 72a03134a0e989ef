"""Compute a KV cache once, keep it in kvring, and let another process go on from it.

    python -m examples.quickstart [--tokens 4200] [--path DIR] [--capacity 4GiB]

One process prefills a prompt with a small Llama and stores the KV cache through LMCache's
StorageManager. A second process loads it and goes on generating; its logits must equal those of
the first, which used no cache, bit for bit. At the end a real `lmcache server` is filled, restarted
and asked again.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

if __package__ in (None, ""):  # run as a file, where only its own directory is importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.quickstart.console import Report
from tests.support.adapter_spec import ADAPTER_NAMES, DEFAULT_CAPACITY, AdapterSpec, adapter_spec
from tests.support.bench_client import CHUNKS_PER_REQUEST
from tests.support.deployment import (
    FIRST_CLIENT_BLOCKS,
    LATER_CLIENT_BLOCKS,
    LOADED_CHUNKS_METRIC,
    STORED_CHUNKS_METRIC,
    CacheServer,
    fresh_run_problems,
    restart_problems,
)
from tests.support.lmcache_command import DeploymentError, lmcache_environment

DEPLOYMENT_REQUESTS = 2


class DemoError(Exception):
    """The demo found something that is not as it must be."""


def main() -> int:
    """Run the demo and return the exit status: 0 only if everything matched."""
    arguments = _parse_arguments()
    report = Report()
    try:
        with _data_directory(arguments.path, arguments.keep) as directory:
            spec = adapter_spec(arguments.adapter, directory / "kv", arguments.capacity)
            with tempfile.TemporaryDirectory(prefix="kvring-demo-exchange-") as exchange:
                _store_and_load(report, spec, arguments.tokens, Path(exchange))
            report.line(f"Data: {_describe_data(directory / 'kv')}")
            report.line()
            if arguments.skip_deployment:
                report.line("The deployment check was left out; --skip-deployment did that.")
            else:
                spec = adapter_spec(arguments.adapter, directory / "server", arguments.capacity)
                _check_deployment(report, spec, directory / "server.log")
    except (DemoError, DeploymentError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    report.line("Everything matches.")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.quickstart", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--path",
        type=Path,
        help="directory for the data; it is never removed "
        "(default: a temporary one below the current directory, removed at the end)",
    )
    parser.add_argument("--keep", action="store_true", help="do not remove the temporary directory")
    parser.add_argument(
        "--tokens", type=int, default=4200, help="length of the prompt (default: %(default)s)"
    )
    parser.add_argument(
        "--capacity", default=DEFAULT_CAPACITY, help="kvring's capacity (default: %(default)s)"
    )
    parser.add_argument(
        "--adapter",
        choices=ADAPTER_NAMES,
        default=ADAPTER_NAMES[0],
        help="L2 adapter; fs_native is LMCache's own, to compare with (default: %(default)s)",
    )
    parser.add_argument(
        "--skip-deployment", action="store_true", help="leave out the `lmcache server` at the end"
    )
    arguments = parser.parse_args()
    if arguments.tokens < 2:
        parser.error("--tokens must be at least 2")
    return arguments


@contextmanager
def _data_directory(path: Path | None, keep: bool) -> Iterator[Path]:
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    directory = Path(tempfile.mkdtemp(prefix="kvring-demo-", dir=Path.cwd()))
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory)


def _store_and_load(report: Report, spec: AdapterSpec, token_count: int, exchange: Path) -> None:
    report.line("Process 1: prefill without a cache, and store")
    _run_worker("store", spec, token_count, exchange)
    stored = json.loads((exchange / "store.json").read_text())
    report.line()
    report.line("Process 2: load, and go on generating")
    _run_worker("load", spec, token_count, exchange)
    loaded = json.loads((exchange / "load.json").read_text())

    size_bytes, load_s = stored["total_bytes"], loaded["prefetch_s"] + loaded["restore_s"]
    chunk_count = stored["chunk_count"]
    report.line()
    report.line(f"Prefill without a cache: {stored['prefill_s']:.2f} s")
    report.line(
        f"Load with it: {load_s:.2f} s, {stored['prefill_s'] / load_s:.1f} times as fast"
        f" ({loaded['prefetch_s']:.2f} s from L2, {loaded['restore_s']:.2f} s into the model)"
    )
    report.line(
        f"Bytes: {size_bytes} ({size_bytes / 2**20:.0f} MiB) for {stored['cached_tokens']} tokens; "
        f"stored at {_rate(size_bytes, stored['store_s'])}, "
        f"read at {_rate(size_bytes, loaded['prefetch_s'])}"
    )
    report.line(f"Hits: {loaded['hit_count']} of {chunk_count} chunks")
    report.line(f"Equal bytes: {loaded['equal_chunks']} of {chunk_count} chunks")
    report.line(f"Equal logits: {loaded['logits_equal']}, equal tokens: {loaded['tokens_equal']}")

    if loaded["hit_count"] != chunk_count:
        raise DemoError(f"{loaded['hit_count']} of {chunk_count} chunks were hit")
    if loaded["equal_chunks"] != chunk_count:
        raise DemoError(f"{loaded['equal_chunks']} of {chunk_count} chunks came back unchanged")
    if not (loaded["logits_equal"] and loaded["tokens_equal"]):
        difference = loaded["largest_logit_difference"]
        raise DemoError(f"the generations differ, in the logits by up to {difference}")


def _run_worker(phase: str, spec: AdapterSpec, token_count: int, exchange: Path) -> None:
    environment = lmcache_environment() | {"LMCACHE_LOG_LEVEL": "WARNING"}
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "examples.quickstart.worker", phase),
            *("--adapter-json", json.dumps(spec), "--tokens", str(token_count)),
            *("--exchange", str(exchange)),
        ],
        env=environment,
        check=False,
    )
    if finished.returncode != 0:
        raise DemoError(f"the {phase} process ended with status {finished.returncode}")


def _check_deployment(report: Report, spec: AdapterSpec, log_path: Path) -> None:
    report.line("The whole deployment: `lmcache server` above it, and LMCache's own client")
    chunk_count = DEPLOYMENT_REQUESTS * CHUNKS_PER_REQUEST
    with ExitStack() as stack:
        with report.step("Start a server"):
            server = stack.enter_context(CacheServer(spec, log_path))
        with report.step("Fill it, and wait until all is in L2"):
            first = server.run_client(DEPLOYMENT_REQUESTS, FIRST_CLIENT_BLOCKS)
            server.wait_for_metric(STORED_CHUNKS_METRIC, chunk_count)
        with report.step("Stop it"):
            server.stop()
        with report.step("Start another on the same data"):
            server = stack.enter_context(CacheServer(spec, log_path))
        with report.step("Ask for the same again"):
            later = server.run_client(DEPLOYMENT_REQUESTS, LATER_CLIENT_BLOCKS)
            server.wait_for_metric(LOADED_CHUNKS_METRIC, chunk_count)
        with report.step("Stop it"):
            server.stop()
    problems = fresh_run_problems(first, DEPLOYMENT_REQUESTS) + restart_problems(first, later)
    if problems:
        raise DemoError("\n".join(problems))
    report.line(f"Cold lookups after the restart: {chunk_count} of {chunk_count} chunks hit")
    report.line("Checksums after the restart: all equal those before it")


def _describe_data(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file()]
    allocated_bytes = sum(path.stat().st_blocks * 512 for path in files)
    return f"{directory} ({len(files)} files, {allocated_bytes / 2**20:.0f} MiB on disk)"


def _rate(size_bytes: int, duration_s: float) -> str:
    return f"{size_bytes / 1e6 / duration_s:.0f} MB/s"


if __name__ == "__main__":
    sys.exit(main())
