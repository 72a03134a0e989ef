"""Time to first token with vLLM on a GPU: cold, from DRAM, from kvring, from vLLM's tier fs.

    python -m examples.gpu [--path DIR] [--lengths 8192 16384 32768] [--prompts 3]

For each tier a first vLLM computes prompts, and answers them again from DRAM. Then it ends. A
second one has nothing in memory, and answers them from the tier. The weights are random, in the
shape of Llama 3.2 1B; nothing is downloaded. It needs a GPU, and vLLM with all its packages.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file, where only its own directory is importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from examples.gpu.model import write_model
from examples.quickstart.console import Report
from kvring.cli.programs import vllm

_COLD, _DRAM = "cold", "DRAM"
_KVRING, _FS = "kvring", "vLLM's fs"
# Tokens of an offloaded chunk: 8 MiB.
_CHUNK_TOKENS = 256


class DemoError(Exception):
    """The demo found something that is not as it must be."""


def main() -> int:
    """Run the demo; return the exit status, which is 0 where it is skipped too."""
    arguments = _parse_arguments()
    reason = skip_reason()
    if reason is not None:
        print(f"examples/gpu: skipped: {reason}")
        return 0
    report = Report()
    try:
        with tempfile.TemporaryDirectory(prefix="kvring-demo-gpu-", dir=arguments.path) as work:
            rows = list(_measure(arguments, Path(work), report))
    except DemoError as error:
        print(f"examples/gpu: {error}", file=sys.stderr)
        return 1
    _print(rows, arguments.lengths)
    problems = list(_problems(rows))
    for problem in problems:
        print(f"examples/gpu: {problem}", file=sys.stderr)
    return 1 if problems else 0


def skip_reason() -> str | None:
    """Say why this machine cannot run it; None if it can."""
    for module in ("torch", "vllm"):
        if find_spec(module) is None:
            return f"the package {module} is not installed here; pip install vllm==0.33.0"
    import torch

    if not torch.cuda.is_available():
        return "there is no GPU that torch can use here"
    return None


def transfer_of(tier: str, directory: Path, memory_gb: float, capacity: str) -> dict[str, Any]:
    """Return vLLM's --kv-transfer-config with one tier below DRAM."""
    spec = vllm({"path": str(directory / "kvring"), "capacity": capacity}, memory_gb).spec
    extra = spec["kv_connector_extra_config"]
    extra["block_size"] = _CHUNK_TOKENS
    if tier == _FS:
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(directory / "fs")}]
    return spec


def _measure(arguments: argparse.Namespace, work: Path, report: Report) -> Iterable[dict[str, Any]]:
    model = write_model(work)
    for tier in (_KVRING, _FS):
        specification = {
            "model": str(model),
            "lengths": arguments.lengths,
            "prompts": arguments.prompts,
            "transfer": transfer_of(tier, work, arguments.memory_gb, arguments.capacity),
        }
        for sources in ([_COLD, _DRAM], [tier]):
            with report.step(f"vLLM with {tier}: {' and '.join(sources)}"):
                yield from _stage({**specification, "sources": sources}, tier)


def _stage(specification: dict[str, Any], tier: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "examples.gpu.stage", json.dumps(specification)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
        if done.returncode:
            errors.seek(0)
            raise DemoError(f"vLLM ended with {done.returncode}:\n{errors.read()[-4000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"source"')]
    return [{**json.loads(line), "tier": tier} for line in lines]


def _print(rows: list[dict[str, Any]], lengths: list[int]) -> None:
    table = Table(title="Time to first token, ms (median), and chunks that came from the tier")
    table.add_column("from")
    for tokens in lengths:
        table.add_column(f"{tokens:,} tokens", justify="right")
    for source in (_COLD, _DRAM, _KVRING, _FS):
        cells = []
        for tokens in lengths:
            found = [row for row in rows if (row["source"], row["tokens"]) == (source, tokens)]
            milliseconds = statistics.median(row["seconds"] for row in found) * 1000
            hits: dict[str, int] = defaultdict(int)
            for row in found:
                for name, count in row["hits"].items():
                    hits[name] += count
            told = ", ".join(
                f"{count} from {name}" for name, count in sorted(hits.items()) if count
            )
            cells.append(f"{milliseconds:,.0f} ({told or 'no hit'})")
        table.add_row(source, *cells)
    Console().print(table)


def _problems(rows: list[dict[str, Any]]) -> Iterable[str]:
    """Say what is not as it must be: whence the KV came, and what was made of it."""
    computed = {
        (row["tier"], row["tokens"], row["number"]): row["token"]
        for row in rows
        if row["source"] == _COLD
    }
    for row in rows:
        what = f"{row['source']}, {row['tokens']} tokens, prompt {row['number']}"
        # vLLM names its tiers by number and type.
        wanted = {_COLD: None, _DRAM: "0:primary", _KVRING: "1:KvringTier", _FS: "1:fs"}
        tier = wanted[row["source"]]
        if tier is None:
            if any(row["hits"].values()):
                yield f"{what}: it was not cold: {row['hits']}"
        elif row["hits"].get(tier, 0) < row["tokens"] // _CHUNK_TOKENS - 1:
            yield f"{what}: it did not come from {tier}: {row['hits']}"
        if row["token"] != computed[row["tier"], row["tokens"], row["number"]]:
            yield f"{what}: the first token is another one than that of the cold run"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.gpu", description=__doc__)
    parser.add_argument("--path", type=Path, help="where the tiers store; by default in /tmp")
    parser.add_argument("--capacity", default="32GiB", help="of kvring (default: %(default)s)")
    parser.add_argument("--memory-gb", type=float, default=16, help="DRAM (default: %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--prompts", type=int, default=3, help="of each length")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
