"""The dashboard, asked of a real Prometheus that scrapes a store at work."""

import itertools
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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
from tests.support.prometheus import asked, prometheus

DASHBOARD = REPOSITORY / "docs/grafana/kvring.json"
# What Grafana puts in place of its variables.
VARIABLES = {"$node": ".*", "$store": ".*", "$__rate_interval": "10s"}


def queries(*, of_shared_tier: bool = False) -> list[tuple[str, str]]:
    """Return the title and the query of each target of each panel."""
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        (panel["title"], target["expr"])
        for panel in document["panels"]
        for target in panel.get("targets", [])
        if ("kvring_shared_" in target["expr"]) is of_shared_tier
    ]


def results(port: int, query: str) -> list[dict[str, Any]]:
    """Ask Prometheus, as Grafana does."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return asked(port, query)


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


def test_each_query_is_of_the_nodes_and_stores_that_are_chosen() -> None:
    for title, query in [*queries(), *queries(of_shared_tier=True)]:
        selectors = re.findall(r"kvring_\w+({[^}]*})?", query)
        assert all('{instance=~"$node",store=~"$store"' in one for one in selectors), (title, query)
    variables = json.loads(DASHBOARD.read_text(encoding="utf-8"))["templating"]["list"]
    assert [one["name"] for one in variables] == ["datasource", "node", "store"]
    # It offers the stores of the chosen nodes.
    assert variables[2]["definition"] == 'label_values(kvring_io_threads{instance=~"$node"}, store)'


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
        # Where a drive has write streams.
        "kvring_stream_written_bytes_total",
    }
    assert {name for name in names if name not in text} == left_out
