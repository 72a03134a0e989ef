"""The same through LMCache's own `lmcache bench l2`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches.compare.peers import (
    FS_NATIVE,
    FS_NATIVE_CACHED,
    KVRING,
    PLUGIN,
    RAW_BLOCK,
    raw_block_settings,
)
from benches.compare.samples import KEY_RATE, RATE, Sample, size_text
from benches.compare.scale import MIB, BenchL2Plan
from benches.compare.session import SectionResult, Session, progress
from benches.compare.workload import TransferError
from tests.support.adapter_spec import adapter_spec
from tests.support.devices import EXT4_LOOP, Device
from tests.support.lmcache_command import lmcache_command, lmcache_environment

STORE = "store"
LOOKUP = "lookup"
LOAD = "load"

_DEADLINE_S = 300.0
_WARM_UP_ROUNDS = 2
# LMCache's own refuse O_DIRECT for memory that is aligned to less.
_ALIGNMENT_BYTES = 4096

Spec = dict[str, Any]


def case_of(plan: BenchL2Plan) -> str:
    """Name a setting."""
    return "aligned" if plan.align_bytes > 1 else "unaligned"


def run(session: Session) -> SectionResult:
    """Measure on ext4 over a loop device."""
    result = SectionResult()
    with session.device(EXT4_LOOP) as device:
        result.device = {"name": device.name, **device.facts}
        for plan in session.scale.bench_l2:
            specs = _specs(session, device, plan, result)
            for round_number in range(session.scale.bench_l2_rounds):
                order = list(specs) if round_number % 2 == 0 else list(specs)[::-1]
                for name in order:
                    size = size_text(plan.chunk_size_bytes)
                    progress(f"bench l2, {size} {case_of(plan)}, round {round_number + 1}: {name}")
                    measured = _measure(plan, specs[name], device, name, result)
                    for operation, values in measured.items():
                        result.samples.add(
                            Sample(
                                *(operation, case_of(plan), plan.chunk_size_bytes),
                                *(name, round_number, values),
                            )
                        )
    result.notes.append(
        "Each round is a process of its own over an empty store: kvring writes here to space that "
        "was never written before, unlike above. Unaligned: --l1-align-bytes 1; fs_native then "
        "goes through the page cache, so only its lookups are compared in the goals. "
        "MB = 1e6 bytes; the command itself prints MiB."
    )
    return result


def _specs(
    session: Session, device: Device, plan: BenchL2Plan, result: SectionResult
) -> dict[str, Callable[[Path], Spec]]:
    """Return how to specify each adapter, given a directory."""
    capacity = str(session.scale.kvring_capacity_bytes)

    def kvring(name: str) -> Callable[[Path], Spec]:
        return lambda directory: adapter_spec(name, directory, capacity)

    def fs_native(directory: Path) -> Spec:
        return {
            "type": "fs_native",
            "base_path": str(directory),
            "num_workers": 4,
            "use_odirect": plan.align_bytes >= _ALIGNMENT_BYTES,
        }

    specs = {PLUGIN: kvring("plugin"), KVRING: kvring("native_plugin")}
    if plan.align_bytes < _ALIGNMENT_BYTES:
        specs[FS_NATIVE_CACHED] = fs_native
        for peer in (FS_NATIVE, RAW_BLOCK):
            result.skip(f"{peer}, unaligned", "it refuses O_DIRECT with unaligned memory")
        return specs
    specs[FS_NATIVE] = fs_native
    raw_device = device.raw_device
    if raw_device is None:
        result.skip(RAW_BLOCK, "it needs a block device of its own")
    else:
        settings = raw_block_settings(raw_device, plan.chunk_size_bytes)
        specs[RAW_BLOCK] = lambda _: {"type": "raw_block", **settings}
    return specs


def _measure(
    plan: BenchL2Plan,
    spec_for: Callable[[Path], Spec],
    device: Device,
    name: str,
    result: SectionResult,
) -> dict[str, dict[str, float]]:
    # The keys are the same every time: only an empty directory has them stored anew.
    with tempfile.TemporaryDirectory(dir=device.directory) as work:
        directory, output = Path(work) / "data", Path(work) / "result.json"
        directory.mkdir()
        arguments = _arguments(plan, spec_for(directory), output)
        shown = _arguments(plan, spec_for(Path("DIRECTORY")), Path("RESULT.json"))
        if device.raw_device is not None:
            shown = [one.replace(str(device.raw_device), "DEVICE") for one in shown]
        result.commands.setdefault(
            f"lmcache bench l2 with {name}, as for its first setting",
            " ".join(["lmcache", *(f"'{one}'" if "{" in one else one for one in shown)]),
        )
        done = subprocess.run(
            lmcache_command(*arguments),
            env=lmcache_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0 or not output.exists():
            raise TransferError(f"lmcache bench l2, {name}: {(done.stdout + done.stderr)[-400:]}")
        return parse_bench_l2(json.loads(output.read_text(encoding="utf-8")))


def _arguments(plan: BenchL2Plan, spec: Spec, output: Path) -> list[str]:
    return [
        *("bench", "l2", "--l2-adapter", json.dumps(spec)),
        *("--data-size-kb", str(plan.chunk_size_bytes // 1024)),
        *("--l1-align-bytes", str(plan.align_bytes), "--num-keys", str(plan.keys_per_submit)),
        *("--in-flight", str(plan.in_flight), "--rounds", str(plan.rounds)),
        *("--warmup-rounds", str(_WARM_UP_ROUNDS), "--lookup-max-hit-rate", "1.0"),
        *("--no-skip-verify", "--format", "json", "--output", str(output)),
    ]


def parse_bench_l2(document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Read the rates out of the command's JSON.

    Args:
        document: What `--format json --output` wrote.

    Returns:
        Rates by operation. Lookups move no bytes: they have keys a second only.

    Raises:
        TransferError: Not every key succeeded.
    """
    rates = {}
    for name, section in document["metrics"].items():
        if not name.startswith("op_"):
            continue
        operation = str(section["operation"]).lower()
        if section["total_success"] != section["total_keys"] or section["rounds_timed_out"]:
            raise TransferError(
                f"lmcache bench l2: {operation} succeeded for {section['total_success']} of "
                f"{section['total_keys']} keys"
            )
        rates[operation] = {KEY_RATE: float(section["ops_per_sec_avg"])}
        if operation != LOOKUP:
            rates[operation][RATE] = float(section["throughput_avg_mbps"]) * MIB / 1e6
    return rates
