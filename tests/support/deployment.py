"""The whole deployment on one machine: a real `lmcache server` and LMCache's own client."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.adapter_spec import AdapterSpec
from tests.support.bench_client import (
    CHUNKS_PER_REQUEST,
    TOKENS_PER_REQUEST,
    ClientRun,
    Request,
    run_client,
)
from tests.support.lmcache_command import (
    DEADLINE_S,
    DeploymentError,
    lmcache_command,
    lmcache_environment,
)
from tests.support.machines import HERE, KILLED_WITH_PARENT, Machine, free_ports

if TYPE_CHECKING:
    from typing_extensions import Self

POLL_INTERVAL_S = 0.1
START_ATTEMPTS = 3
STORED_CHUNKS_METRIC = "lmcache_mp_l2_store_completed_objects_chunks_total"
LOADED_CHUNKS_METRIC = "lmcache_mp_l2_prefetch_load_completed_chunks_total"

# The client fills its KV cache from a fixed seed and does not clear it before it retrieves: with
# the same geometry, a second client would hold the right bytes even if nothing were retrieved.
# Another number of blocks puts other values into every block and changes neither the chunks nor
# their keys, so that equal checksums can only have come from L2. Both numbers are large enough
# for four requests to use blocks of their own and have checksums of their own.
FIRST_CLIENT_BLOCKS = 768
LATER_CLIENT_BLOCKS = 896

_MISSED_AND_STORED = Request(
    hit_chunks=0, total_chunks=CHUNKS_PER_REQUEST, stored_tokens=TOKENS_PER_REQUEST
)
_HIT_AND_RETRIEVED = Request(
    hit_chunks=CHUNKS_PER_REQUEST,
    total_chunks=CHUNKS_PER_REQUEST,
    retrieved_tokens=TOKENS_PER_REQUEST,
)


class CacheServer:
    """A running `lmcache server` on free ports; leaving the `with` block ends it for sure."""

    def __init__(
        self,
        spec: AdapterSpec | None,
        log_path: Path,
        l1_size_gb: float = 1.0,
        machine: Machine = HERE,
        transfer_mode: str | None = None,
    ) -> None:
        """Prepare a server with the L2 adapter ``spec``, or none, with its log at ``log_path``.

        ``transfer_mode`` is LMCache's; an engine without a GPU needs "engine_driven".
        """
        self._machine = machine
        self._spec: AdapterSpec = spec or {}
        self._log_path = log_path
        self._l1_size_gb = l1_size_gb
        self._transfer_mode = transfer_mode
        self._process: subprocess.Popen[bytes] | None = None
        self._rpc_port = 0
        self._http_port = 0

    def __enter__(self) -> "Self":
        """Start the server and wait until it answers."""
        try:
            self._start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the server if it still runs."""
        self.kill()

    def run_client(
        self, request_count: int, block_count: int, *, is_timed: bool = False
    ) -> ClientRun:
        """Run LMCache's client against this server; see ``bench_client``."""
        rpc_url = f"tcp://{self._machine.host}:{self._rpc_port}"
        return run_client(rpc_url, self._http_url, request_count, block_count, is_timed=is_timed)

    def fetch(self, path: str) -> str:
        """Return a page of its HTTP server, such as ``/status``."""
        with urllib.request.urlopen(self._http_url + path, timeout=DEADLINE_S) as response:
            return str(response.read(), "utf-8")

    def clear_l1(self) -> None:
        """Have it forget what it holds in memory, as far as nothing uses that."""
        request = urllib.request.Request(self._http_url + "/cache/clear", method="POST")
        urllib.request.urlopen(request, timeout=DEADLINE_S).close()

    def metric(self, name: str) -> int:
        """Return the sum of a counter over its labels, 0 before its first count."""
        pattern = re.compile(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", re.MULTILINE)
        return round(sum(float(value) for value in pattern.findall(self.metrics())))

    def metrics(self) -> str:
        """Return all metrics, in the format of Prometheus."""
        return self.fetch("/metrics")

    def wait_for_metric(self, name: str, count: int, timeout_s: float = DEADLINE_S) -> None:
        """Return when the counter ``name`` has reached ``count``.

        ``STORED_CHUNKS_METRIC`` is what tells that chunks are safely in L2: it moves only after
        the L2 adapter has reported a batch stored, by the batch's successful chunks, so it can
        lag but never lead. Empty queues would not do, for a batch is in no queue while it is
        handed over; nor would files and their sizes, which are there before their content is.
        """
        deadline_s = time.monotonic() + timeout_s
        value = self.metric(name)
        while value < count:
            if time.monotonic() > deadline_s:
                raise self._error(f"{name} was {value} and not {count} after {timeout_s} s")
            time.sleep(POLL_INTERVAL_S)
            value = self.metric(name)

    def stop(self) -> None:
        """Ask the server to end, as an operator would, and wait until it has."""
        process = self._started()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise self._error(f"the server still ran {DEADLINE_S} s after SIGTERM") from None
        # uvicorn raises the signal again after its orderly shutdown, which the log must show.
        orderly = "LMCache HTTP server stopped" in self._log_path.read_text(errors="replace")
        if process.returncode not in (0, -signal.SIGTERM) or not orderly:
            raise self._error(f"the server ended with status {process.returncode}")

    def kill(self) -> None:
        """End the server as `kill -9` does: no step of an orderly shutdown happens."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def port(self) -> int:
        """The port to which engines connect."""
        return self._rpc_port

    @property
    def urls(self) -> tuple[str, str]:
        """Where engines connect, and its HTTP server."""
        return f"tcp://{self._machine.host}:{self._rpc_port}", self._http_url

    @property
    def _http_url(self) -> str:
        return f"http://{self._machine.host}:{self._http_port}"

    def _start(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            self._rpc_port, self._http_port = free_ports(2)
            program = lmcache_command("server", *self._arguments())
            with self._log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    [*KILLED_WITH_PARENT, *self._machine.prefix, *program],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # stop() looks for a line of this level.
                    env=lmcache_environment() | {"LMCACHE_LOG_LEVEL": "INFO"},
                )
            if self._wait_until_healthy(self._process):
                return
            # Another process may take a free port before the server does.
            port_taken = "ddress already in use" in self._log_path.read_text(errors="replace")
            if not port_taken or attempt == START_ATTEMPTS:
                status = self._process.returncode
                raise self._error(f"the server ended at its start with status {status}")

    def _arguments(self) -> list[str]:
        return [
            *("--host", self._machine.host, "--port", str(self._rpc_port)),
            *("--http-host", self._machine.host, "--http-port", str(self._http_port)),
            *("--l1-size-gb", str(self._l1_size_gb), "--eviction-policy", "LRU"),
            *(("--l2-adapter", json.dumps(self._spec)) if self._spec else ()),
            *(("--supported-transfer-mode", self._transfer_mode) if self._transfer_mode else ()),
        ]

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> bool:
        deadline_s = time.monotonic() + DEADLINE_S
        while process.poll() is None:
            if self._answers():
                return True
            if time.monotonic() > deadline_s:
                raise self._error(f"the server did not answer in {DEADLINE_S} s")
            time.sleep(POLL_INTERVAL_S)
        return False

    def _answers(self) -> bool:
        try:
            self.fetch("/healthcheck")
        except OSError:
            return False
        return True

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise DeploymentError("the server has not been started")
        return self._process

    def _error(self, message: str) -> DeploymentError:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return DeploymentError("\n".join([message, "--- end of the server's log", *lines[-60:]]))


def fresh_run_problems(run: ClientRun, request_count: int) -> list[str]:
    """Return what is wrong with a run against an empty cache; nothing if it went as it must."""
    sequences = list(range(request_count))
    problems: list[str] = []
    if sorted(run.matching_sequences) != sequences:
        problems.append(f"checksums matched for sequences {run.matching_sequences} only")
    if list(run.cold) != sequences or list(run.warm) != sequences:
        problems.append(f"requests {list(run.cold)} and {list(run.warm)}, not 0 to {request_count}")
        return problems
    for sequence in sequences:
        cold, warm = run.cold[sequence], run.warm[sequence]
        problems += _difference(sequence, "cold", cold, _MISSED_AND_STORED)
        problems += _difference(sequence, "warm", warm, _HIT_AND_RETRIEVED)
        if cold.checksum is None or cold.checksum != warm.checksum:
            problems.append(f"sequence {sequence}: {cold.checksum} became {warm.checksum}")
    if len({request.checksum for request in run.cold.values()}) != request_count:
        problems.append("requests share a checksum, so a swap of theirs would go unseen")
    return problems


def restart_problems(first: ClientRun, later: ClientRun) -> list[str]:
    """Return what is wrong with a run against a restarted server that ``first`` had filled."""
    if later.cold.keys() != first.cold.keys() or later.warm.keys() != first.warm.keys():
        return [f"requests {list(later.cold)} and {list(later.warm)}, not {list(first.cold)}"]
    problems: list[str] = []
    for sequence, before in first.warm.items():
        cold, warm = later.cold[sequence], later.warm[sequence]
        problems += _difference(sequence, "cold", cold, _HIT_AND_RETRIEVED)
        problems += _difference(sequence, "warm", warm, _HIT_AND_RETRIEVED)
        if warm.checksum is None or warm.checksum != before.checksum:
            problems.append(f"sequence {sequence}: {before.checksum} became {warm.checksum}")
    return problems


def _difference(sequence: int, phase: str, found: Request, expected: Request) -> list[str]:
    if replace(found, checksum=None) == expected:
        return []
    return [f"sequence {sequence}, {phase}: {found}, expected {expected}"]
