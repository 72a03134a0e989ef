"""The dashboard, asked of a real Prometheus that scrapes a store at work."""

import itertools
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    REPOSITORY,
    Client,
    make_key,
    make_memory,
    pattern,
)
from tests.support.pages import fetched

DASHBOARD = REPOSITORY / "docs/grafana/kvring.json"
# What Grafana puts in place of its variables.
VARIABLES = {"$store": ".*", "$__rate_interval": "10s"}


def queries(*, of_shared_tier: bool = False) -> list[tuple[str, str]]:
    """Return the title and the query of each target of each panel."""
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        (panel["title"], target["expr"])
        for panel in document["panels"]
        for target in panel.get("targets", [])
        if ("kvring_shared_" in target["expr"]) is of_shared_tier
    ]


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install prometheus)")
    return path


@contextmanager
def prometheus(directory: Path, target_port: int) -> Iterator[int]:
    """Run a Prometheus that scrapes a port of this machine each second; lend its own port."""
    program = need("prometheus")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "kvring", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    with (
        (directory / "prometheus.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield port
        finally:
            process.terminate()


def results(port: int, query: str) -> list[dict[str, Any]]:
    """Ask Prometheus."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    status, text = fetched(port, f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    document = json.loads(text)
    assert (status, document["status"]) == (200, "success"), (query, text)
    found: list[dict[str, Any]] = document["data"]["result"]
    return found


def test_every_panel_has_data(
    open_client: Callable[..., Client], tmp_path: Path, port: int
) -> None:
    client = open_client("16MiB", lease_s=1, metrics_port=port)
    numbers = itertools.count()
    with prometheus(tmp_path, port) as server:
        missing = queries()
        assert len(missing) > 30
        deadline_s = time.monotonic() + HANG_DEADLINE_S
        while missing:
            assert time.monotonic() < deadline_s, missing
            for number in itertools.islice(numbers, 30):
                key = make_key(number % 40)
                client.exists([key, make_key(number + 1000)])
                client.get([key], [make_memory(MIB)])
                client.store({key: pattern(MIB, number % 40)})
                client.get([key], [make_memory(MIB)])
                client.delete([make_key((number - 2) % 40)] if number % 10 == 0 else [])
            time.sleep(0.5)
            # It may be starting.
            with suppress(ConnectionError):
                missing = [one for one in missing if not _has_data(server, one[1])]
        # A figure of each kind is what the store itself says.
        client.wait_until(
            lambda: (
                [float(one["value"][1]) for one in results(server, "sum(kvring_chunks)")]
                == [client.stat("keys")]
            )
        )


def _has_data(server: int, query: str) -> bool:
    values = [one["value"][1] for one in results(server, query)]
    return bool(values) and "NaN" not in values[0]


def test_every_metric_of_the_dashboard_is_there_and_every_metric_is_on_it(client: Client) -> None:
    """Those of registered memory, transfers, refused leases and other variants are for `stats`."""
    assert client.stat("keys") == 0
    page = generate_latest(REGISTRY).decode()
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE kvring_")}
    # Those of a shared tier are there where its module was imported.
    names = {name for name in names if not name.endswith("_created") and "_shared_" not in name}
    text = " ".join(query for _, query in queries())
    left_out = {
        "kvring_registered_bytes",
        "kvring_transfers_total",
        "kvring_leases_refused_total",
        "kvring_other_variant_total",
        "kvring_abandoned_operations_total",
        "kvring_removed_bytes_total",
        "kvring_stored_bytes",
    }
    assert {name for name in names if name not in text} == left_out
