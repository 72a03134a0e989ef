"""A prompt's KV cache is computed once by the real vLLM, kept in kvring, and used by new processes.

    python -m examples.quickstart [--tokens 7000] [--path DIR] [--capacity 4GiB]

vLLM runs on this machine's processor (`make engines` installs it), each time in a new process
that is forked from one that has imported it. Its time to the first token is told without a cache,
from kvring in a new process, and after a `kill -9`; then the same with LMCache's server in between.
The answers must be equal, token for token.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Self

if __package__ in (None, ""):  # run as a file, where only its own directory is importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.quickstart.client import run_client_alone
from examples.quickstart.console import Report
from kvring.cli import programs
from kvring.cli.machine import machine_facts
from kvring.owner_requests import ask
from tests.support.adapter_spec import DEFAULT_CAPACITY, adapter_spec
from tests.support.deployment import STORED_CHUNKS_METRIC, CacheServer
from tests.support.lmcache_command import REPOSITORY, DeploymentError

LMCACHE_PACKAGES = sysconfig.get_path("purelib")
ENGINES_PYTHON = REPOSITORY / ".venv-engines" / "bin" / "python"
DEADLINE_S = 600.0
PRIMARY_TIER_GB = 1.0
L1_GB = 1.0
WRITTEN_CHUNKS_METRIC = "lmcache_mp_l1_write_chunks_total"
# What is left of a process that was killed is found by it.
ENGINE_ID = f"kvring-demo-{os.getpid()}"


class DemoError(Exception):
    """The demo found something that is not as it must be."""


class Answer(NamedTuple):
    """What vLLM answered to a prompt."""

    first_token_s: float
    # Tokens of the prompt that were not computed.
    cached: int
    tokens: list[int]


class Engine:
    """Has the real vLLM answer prompts, in a new process each time."""

    def __init__(self, directory: Path, length: int) -> None:
        """Keep its model and its log in a directory; prompts have so many tokens."""
        self._directory = directory
        self._length = length

    def __enter__(self) -> Self:
        """Import vLLM in the process from which the others are forked."""
        path = [str(REPOSITORY), os.environ.get("PYTHONPATH")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONWARNINGS": "ignore",
        }
        for name in ("VLLM_CONFIG_ROOT", "VLLM_CACHE_ROOT"):
            environment[name] = str(self._directory / "vllm")
        with (self._directory / "vllm.log").open("ab") as log:
            self._process = subprocess.Popen(
                [ENGINES_PYTHON, "-m", "examples.quickstart.engine"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        """End all of its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._remove_left_memory()

    def ask(self, *numbers: int, **task: Any) -> list[Answer]:
        """Have prompts answered, and stored if there is a `connector`."""
        answers: list[Answer] = []
        for told in self._do(numbers, task):
            answers += [Answer(**one) for one in told.get("answers", [])]
            if told.get("ended"):
                raise self._error(told["ended"])
        return answers

    def die_while_storing(self, number: int, store: Path, **task: Any) -> None:
        """Have a prompt answered, and kill the process when the store has some of its chunks."""
        for told in self._do((number,), task):
            if "storing" in told:
                before = _stats(store)["set_stored"]
                while _stats(store)["set_stored"] < before + 8:
                    time.sleep(0.01)
                os.kill(told["storing"], signal.SIGKILL)
            if told.get("ended", -signal.SIGKILL) != -signal.SIGKILL:
                raise self._error(told["ended"])
        self._remove_left_memory()

    def _do(self, numbers: tuple[int, ...], task: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what is told of a task, up to its end."""
        prompts = [[number, self._length] for number in numbers]
        task = {"model": str(self._directory / "model"), "prompts": prompts, **task}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(task)}\n")
            self._process.stdin.flush()
        told: dict[str, Any] = {}
        # So that nothing waits for a vLLM that hangs.
        end = threading.Timer(DEADLINE_S, os.killpg, (self._process.pid, signal.SIGKILL))
        end.start()
        try:
            while "ended" not in told:
                line = self._process.stdout.readline()
                if not line:
                    raise self._error(self._process.wait())
                told = json.loads(line)
                yield told
        finally:
            end.cancel()

    def _error(self, status: int) -> DemoError:
        log = (self._directory / "vllm.log").read_text(errors="replace")
        last = "\n".join(log.splitlines()[-20:])
        return DemoError(f"vLLM ended with status {status}:\n{last}")

    @staticmethod
    def _remove_left_memory() -> None:
        for left in Path("/dev/shm").glob(f"vllm_offload_{ENGINE_ID}*"):
            left.unlink()


def main() -> int:
    """Run the demo and return the exit status: 0 only if everything matched."""
    arguments = _parse_arguments()
    report = Report()
    try:
        with _data_directory(arguments.path, arguments.keep) as directory:
            _run(report, directory, arguments)
    except (DemoError, DeploymentError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    report.line("All answers are equal.")
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
        "--tokens", type=int, default=7000, help="length of the prompt (default: %(default)s)"
    )
    parser.add_argument(
        "--capacity", default=DEFAULT_CAPACITY, help="kvring's capacity (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if not 1000 <= arguments.tokens <= 8000:
        parser.error(f"--tokens {arguments.tokens}: it takes 1000 to 8000")
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


def _run(report: Report, directory: Path, arguments: argparse.Namespace) -> None:
    if not list(ENGINES_PYTHON.parents[1].glob("lib/*/site-packages/vllm/_C*.so")):
        report.line("There is no vLLM for this processor, as `make engines` has said.")
        spec = adapter_spec("plugin", directory / "server", arguments.capacity)
        return run_client_alone(report, spec, directory / "server.log")
    facts = machine_facts([directory])
    report.line(
        f"vLLM on the processor, without a GPU: {facts['processor']}, {facts['cpu_count']} "
        f"processors, {facts['file_system']}. A Llama of 16 layers with random weights, and a "
        f"prompt of {arguments.tokens:,} tokens."
    )
    report.line()
    with Engine(directory, arguments.tokens) as engine:
        cold = _without_lmcache(report, engine, directory / "kv", arguments.capacity)
        report.line()
        _with_lmcache(report, engine, directory, arguments.capacity, cold)
    report.line()
    return None


def _without_lmcache(report: Report, engine: Engine, store: Path, capacity: str) -> Answer:
    # What `kvring config` prints, and a worker that vLLM's own spec has not for a processor.
    connector = programs.vllm({"path": str(store), "capacity": capacity}, PRIMARY_TIER_GB).spec
    connector["engine_id"] = ENGINE_ID
    connector["kv_connector_extra_config"] |= {
        "spec_name": "HostTieringSpec",
        "spec_module_path": "tests.support.host_copies",
    }
    with report.step("vLLM computes the prompt, and stores its KV cache") as tell:
        (cold,) = engine.ask(1, connector=connector, store=str(store))
        tell(_told(cold))
    with report.step("A new process finds it in kvring") as tell:
        (warm,) = engine.ask(1, connector=connector)
        tell(_told(warm, cold))
    with report.step("It is killed (kill -9) while it stores another prompt"):
        engine.die_while_storing(2, store, connector=connector)
    with report.step("A new process after that") as tell:
        (warm,) = engine.ask(1, connector=connector)
        tell(_told(warm, cold))
    return cold


def _with_lmcache(
    report: Report, engine: Engine, directory: Path, capacity: str, cold: Answer
) -> None:
    parameters = {"path": str(directory / "server"), "capacity": capacity}
    start = programs.lmcache(parameters, L1_GB, "plugin", huge_pages=False)
    connector = json.loads(start.commands[1][-1])
    for is_first in (True, False):
        what = "computes it, and stores it" if is_first else "finds it in kvring"
        with ExitStack() as stack:
            step = report.step(f"With a new `lmcache server` a new vLLM {what}")
            tell = stack.enter_context(step)
            server = stack.enter_context(
                CacheServer(
                    start.spec, directory / "server.log", L1_GB, transfer_mode="engine_driven"
                )
            )
            connector["kv_connector_extra_config"] |= {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": server.port,
            }
            (answer,) = engine.ask(1, connector=connector, lmcache=LMCACHE_PACKAGES)
            if is_first:
                written = server.metric(WRITTEN_CHUNKS_METRIC)
                server.wait_for_metric(STORED_CHUNKS_METRIC, written)
            server.stop()
            tell(_told(answer, cold, is_warm=not is_first))


def _told(answer: Answer, cold: Answer | None = None, *, is_warm: bool = True) -> str:
    """Return what a user waits for; the answer must be that of the first process."""
    text = f"{answer.first_token_s:.2f} s to the first token"
    if cold is None:
        return text
    if answer.tokens != cold.tokens:
        raise DemoError(f"the answers differ: {answer.tokens} and {cold.tokens}")
    if not is_warm:
        return f"{text}, equal answer"
    if not answer.cached:
        raise DemoError("no token came from kvring")
    times = cold.first_token_s / answer.first_token_s
    return f"{text} ({times:.1f} times as fast), {answer.cached:,} tokens from kvring, equal answer"


def _stats(store: Path) -> dict[str, Any]:
    answer = ask(store, None, {"ask": "stats"})
    if answer is None:
        raise DemoError(f"nobody has {store} open")
    stats: dict[str, Any] = answer["stats"]
    return stats


if __name__ == "__main__":
    sys.exit(main())
