"""Where vLLM cannot run: LMCache's server above kvring, and LMCache's own client."""

from contextlib import ExitStack
from pathlib import Path

from examples.quickstart.console import Report
from tests.support.adapter_spec import AdapterSpec
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
from tests.support.lmcache_command import DeploymentError

__all__ = ["run_client_alone"]

_REQUESTS = 2


def run_client_alone(report: Report, spec: AdapterSpec, log_path: Path) -> None:
    """Fill a server, restart it, and ask for the same.

    Raises:
        DeploymentError: Something was not found, or is not equal.
    """
    chunk_count = _REQUESTS * CHUNKS_PER_REQUEST
    with ExitStack() as stack:
        with report.step("A new `lmcache server` is filled by LMCache's client"):
            server = stack.enter_context(CacheServer(spec, log_path))
            first = server.run_client(_REQUESTS, FIRST_CLIENT_BLOCKS)
            server.wait_for_metric(STORED_CHUNKS_METRIC, chunk_count)
            server.stop()
        with report.step("A new one on the same store is asked for the same") as tell:
            server = stack.enter_context(CacheServer(spec, log_path))
            later = server.run_client(_REQUESTS, LATER_CLIENT_BLOCKS)
            server.wait_for_metric(LOADED_CHUNKS_METRIC, chunk_count)
            server.stop()
            tell(f"{chunk_count} of {chunk_count} chunks from kvring")
    problems = fresh_run_problems(first, _REQUESTS) + restart_problems(first, later)
    if problems:
        raise DeploymentError("\n".join(problems))
