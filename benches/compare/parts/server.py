"""What a request waits for: from L2 to an empty L1, in a real `lmcache server` with its own client.

A time is from the client's lookup until all chunks are in L1. The server's own histogram of
throughput does not tell it: its clock starts when the submit has returned, and the transfer may be
over by then.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benches.compare.harness.peers import FS_NATIVE, KVRING, PLUGIN, PLUGIN_OFF
from benches.compare.harness.samples import P50, P90, Sample, in_turn, percentile
from benches.compare.harness.session import PartResult, Session, progress
from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.bench_client import CHUNKS_PER_REQUEST
from tests.support.deployment import STORED_CHUNKS_METRIC, CacheServer
from tests.support.devices import EXT4_LOOP, XFS_ZRAM
from tests.support.lmcache_command import DeploymentError

_REQUESTS = 10

# Enough for the requests. Two numbers: no client finds its own values.
_FIRST_BLOCKS = 1408
_LATER_BLOCKS = 1536


def run_on_disk(session: Session) -> PartResult:
    """Measure on ext4 over a loop device."""
    return _run(session, EXT4_LOOP)


def run_on_zram(session: Session) -> PartResult:
    """Measure at the speed of memory."""
    return _run(session, XFS_ZRAM)


def _run(session: Session, device_name: str) -> PartResult:
    result = PartResult()
    with (
        session.device(device_name) as device,
        tempfile.TemporaryDirectory(dir=device.directory) as work,
    ):
        result.device = {"name": device.name, **device.facts}
        specs = _specs(Path(work))
        for name, spec in specs.items():
            progress(f"lmcache server: {name} is filled")
            with CacheServer(spec, Path(work) / "server.log") as server:
                server.run_client(_REQUESTS, _FIRST_BLOCKS)
                server.wait_for_metric(STORED_CHUNKS_METRIC, _REQUESTS * CHUNKS_PER_REQUEST)
                server.stop()
        for number, name in in_turn(list(specs), session.scale.rounds, first=0):
            progress(f"lmcache server, round {number + 1}: {name}")
            with CacheServer(specs[name], Path(work) / "server.log") as server:
                requests = server.run_client(_REQUESTS, _LATER_BLOCKS, is_timed=True).cold.values()
                server.stop()
            if any(request.hit_chunks != CHUNKS_PER_REQUEST for request in requests):
                raise DeploymentError(f"{name}: not every chunk was found in L2: {requests}")
            times_ms = [request.lookup_ms for request in requests]
            values = {P50: percentile(times_ms, 50), P90: percentile(times_ms, 90)}
            result.samples.append(Sample("load 64 MiB", name, number, values))
    result.notes.append(
        f"A request has {CHUNKS_PER_REQUEST} chunks of 8 MiB. Each round is a server of its own "
        "with an empty L1 that is allocated lazily, as by default. A time is from the client's "
        "lookup until all of them are in L1."
    )
    return result


def _specs(directory: Path) -> dict[str, AdapterSpec]:
    def kvring(name: str, **options: object) -> AdapterSpec:
        path = directory / "-".join([name, *map(str, options.values())])
        return adapter_spec(name, path, "1GiB", **options)

    fs_native = adapter_spec("fs_native", directory / "fs_native")
    return {
        PLUGIN: kvring("plugin"),
        PLUGIN_OFF: kvring("plugin", checksum="off"),
        KVRING: kvring("native_plugin"),
        FS_NATIVE: {**fs_native, "use_odirect": True, "num_workers": 4},
    }
