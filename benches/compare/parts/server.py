"""What a request waits for: from L2 to an empty L1, in a real `lmcache server` with its own client.

The client asks every 50 ms whether its prefix is there, so its own times tell little. The server's
histogram `lmcache_mp_l2_load_throughput` has the bytes of each request by the time from the submit
of its load to the end.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from benches.compare.harness.peers import FS_NATIVE, KVRING, PLUGIN, PLUGIN_OFF
from benches.compare.harness.samples import RATE, Sample, in_turn
from benches.compare.harness.session import PartResult, Session, progress
from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.bench_client import CHUNKS_PER_REQUEST
from tests.support.deployment import STORED_CHUNKS_METRIC, CacheServer
from tests.support.devices import EXT4_LOOP, XFS_ZRAM

_REQUESTS = 10

# Enough for the requests. Two numbers: no client finds its own values.
_FIRST_BLOCKS = 1408
_LATER_BLOCKS = 1536

_THROUGHPUT = "lmcache_mp_l2_load_throughput"


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
        for number, name in in_turn(list(specs), session.scale.server_rounds, first=0):
            progress(f"lmcache server, round {number + 1}: {name}")
            with CacheServer(specs[name], Path(work) / "server.log") as server:
                server.run_client(_REQUESTS, _LATER_BLOCKS)
                rate = mean_of(server.metrics(), _THROUGHPUT)
                server.stop()
            values = {RATE: rate * 1000}
            result.samples.append(Sample("load 64 MiB", name, number, values))
    result.notes.append(
        f"A request has {CHUNKS_PER_REQUEST} chunks of 8 MiB. Each round is a server of its own "
        "with an empty L1 that is allocated lazily, as by default; the mean of its requests."
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


def mean_of(metrics: str, name: str) -> float:
    """Return the mean of a histogram.

    Args:
        metrics: A page in the format of Prometheus.
        name: What the names of its series begin with.

    Returns:
        Sum over count, of all its labels together; 0.0 if nothing was observed.
    """

    def total(kind: str) -> float:
        pattern = rf"^{name}\w*_{kind}(?:{{.*}})? (\S+)$"
        return sum(float(value) for value in re.findall(pattern, metrics, re.MULTILINE))

    count = total("count")
    return total("sum") / count if count else 0.0
