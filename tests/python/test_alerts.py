"""The alert rules: each fires in a real Prometheus, and links to a section of the runbook."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import kvring
from tests.python.conftest import (
    HANG_DEADLINE_S,
    KIB,
    MIB,
    REPOSITORY,
    Client,
    make_key,
    make_memory,
    pattern,
)
from tests.python.faulty_device import FaultyDevice, faulty_device
from tests.python.test_frozen import frozen
from tests.support.block_devices import mount, temporary_directory
from tests.support.damage import damage
from tests.support.devices import loop_device
from tests.support.pages import fetched
from tests.support.prometheus import asked, need, prometheus

RULES = REPOSITORY / "docs/grafana/alerts.yml"
CHUNK_BYTES = 64 * KIB
MAKE_EXT4 = ("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", "-E", "nodiscard")

Open = Callable[..., Client]


def names() -> set[str]:
    """Return the names of all alerts."""
    return set(re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8")))


def hastened(directory: Path) -> Path:
    """Return the rules, with hours and minutes that last seconds."""
    text = re.sub(r"for: \w+", "for: 1s", RULES.read_text(encoding="utf-8"))
    path = directory / "hastened.yml"
    path.write_text(re.sub(r"\[(5m|1h)\]", "[15s]", text), encoding="utf-8")
    return path


def firing(server: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the alerts that fire, by name and store."""
    # It may be starting.
    with suppress(ConnectionError):
        alerts = json.loads(fetched(server, "/api/v1/alerts")[1])["data"]["alerts"]
        return {
            (one["labels"]["alertname"], Path(one["labels"]["store"]).name): one
            for one in alerts
            if one["state"] == "firing"
        }
    return {}


def await_alert(
    server: int, alert: str, store: str, go_on: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Do something again and again until an alert fires; return it."""
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while (alert, store) not in (found := firing(server)):
        assert time.monotonic() < deadline_s, (alert, store, list(found))
        go_on()
        time.sleep(0.2)
    return found[alert, store]


@pytest.fixture
def open_store(tmp_path: Path, port: int) -> Iterator[Open]:
    """Open stores whose metrics are served on one port; each is closed at the end."""
    with ExitStack() as stack:

        def build(path: Path | str, capacity: str = "64MiB", **options: Any) -> Client:
            connector = kvring.Connector(
                tmp_path / path, capacity, min_free=0, metrics_port=port, **options
            )
            return Client(stack.enter_context(connector))

        yield build


def begin(open_store: Open) -> dict[str, Client]:
    """Open a store for each state that needs no device of its own, and one that is well."""
    clients = {name: open_store(name) for name in ("well", "damaged", "reset")}
    for client in clients.values():
        client.store({make_key(number): pattern(CHUNK_BYTES, number) for number in range(4)})
    clients["reset"].connector.close()
    return clients


def lose_index(store: Path) -> None:
    """Zero the head of an index."""
    with (store / "index.kvring").open("r+b") as file:
        file.write(bytes(4096))


def test_alerts_fire_for_what_happens_and_for_nothing_else(
    open_store: Open, tmp_path: Path, port: int
) -> None:
    clients = begin(open_store)
    damage(tmp_path / "damaged")
    lose_index(tmp_path / "reset")
    clients["reset"] = open_store("reset")
    clients["misses"] = open_store("misses")
    clients["misses"].store({make_key(1): pattern(CHUNK_BYTES, 1)})
    clients["fails"] = open_store("fails")
    clients["small"] = open_store("small", "16MiB", lease_s=0, admit="always")
    stored = iter(range(1_000_000))

    def work() -> None:
        well, small = clients["well"], clients["small"]
        assert well.exists([make_key(number) for number in range(4)]) == [True] * 4
        assert well.load(make_key(1), CHUNK_BYTES) == pattern(CHUNK_BYTES, 1)
        clients["misses"].exists([make_key(number + 2) for number in range(500)])
        clients["fails"].set([make_key(1)], [make_memory(80 * MIB)])
        for _ in range(16):
            small.store({make_key(next(stored)): pattern(MIB, 1)})

    with prometheus(tmp_path, port, hastened(tmp_path)) as server:
        await_alert(server, "KvringIndexReset", "reset", work)
        memory = [make_memory(CHUNK_BYTES)]
        assert clients["damaged"].get([make_key(1)], memory).results == [False]
        await_alert(server, "KvringCorruption", "damaged", work)
        failing = await_alert(server, "KvringStoresFail", "fails", work)
        assert failing["labels"]["reason"] == "too_long"
        assert "100% of the stores of" in failing["annotations"]["summary"]
        await_alert(server, "KvringNoHits", "misses", work)
        evicting = await_alert(server, "KvringYoungEvictions", "small", work)
        assert re.search(r"after [\d.]+m?s without use", evicting["annotations"]["summary"])
        clients["misses"].connector.close()
        await_alert(server, "KvringNoOwner", "misses")
        assert not [one for one in firing(server) if one[1] == "well"]
        assert_selectors_match(server)


def assert_selectors_match(server: int) -> None:
    """Expect that kvring exports each series that a rule asks for, by name and labels."""
    text = re.sub(r"#.*", "", RULES.read_text(encoding="utf-8"))
    selectors = set(re.findall(r"kvring_[a-z_]+(?:{[^}]*})?", text))
    assert len(selectors) > 10
    assert [one for one in selectors if not asked(server, one)] == []


@pytest.mark.root
def test_a_path_that_fails_fires_and_a_frozen_one(
    open_store: Open, tmp_path: Path, port: int
) -> None:
    with (
        faulty_device(tmp_path, 128 * MIB) as device,
        loop_device(tmp_path, "ext4", 192 * MIB) as other,
        ExitStack() as stack,
        prometheus(tmp_path, port, hastened(tmp_path)) as server,
    ):
        mount_point = temporary_directory(stack, tmp_path)
        place = mount(stack, MAKE_EXT4, device.path, mount_point)
        failing, stuck = open_store(place / "failing"), open_store(other.directory / "stuck")
        keys = [make_key(number) for number in range(40)]
        try:
            assert_fail(server, failing, device, keys)
            assert_stuck(server, stuck, other.directory)
        finally:
            device.mend()
            failing.connector.close()
            stuck.connector.close()


def assert_fail(server: int, client: Client, device: FaultyDevice, keys: list[str]) -> None:
    """Let first flushes and then loads fail: the only path stays in use, and is down."""
    client.store({key: pattern(CHUNK_BYTES, 1) for key in keys})
    device.fail("flush")
    numbers = iter(range(1_000_000))

    def store() -> None:
        client.set([make_key(next(numbers), "more")], [pattern(CHUNK_BYTES, 1)])

    await_alert(server, "KvringPathUnhealthy", "failing", store)
    assert {name for name, store in firing(server) if store == "failing"} == {"KvringPathUnhealthy"}
    device.fail("read")
    dead = await_alert(server, "KvringPathDead", "failing", lambda: load_all(client, keys))
    assert dead["labels"]["severity"] == "critical"
    assert dead["labels"]["path"] in dead["annotations"]["summary"]
    (path,) = client.connector.stats()["paths"]
    assert path["in_use"]
    assert "reads in a row failed" in path["reason"]
    # Whoever is called for the dead path need not be called for its errors.
    client.wait_until(lambda: ("KvringPathUnhealthy", "failing") not in firing(server))
    device.mend()
    client.wait_until(lambda: load_all(client, keys) and is_calm(server, "failing"))


def load_all(client: Client, keys: list[str]) -> bool:
    return client.get(keys, [make_memory(CHUNK_BYTES) for _ in keys]).ok


def is_calm(server: int, store: str) -> bool:
    return not [one for one in firing(server) if one[1] == store]


def assert_stuck(server: int, client: Client, directory: Path) -> None:
    """Freeze a file system: nothing that is written comes back."""
    with frozen(directory):
        begun = client.connector.submit_batch_set([make_key(1)], [pattern(CHUNK_BYTES, 1)])
        stuck = await_alert(server, "KvringPathStuck", "stuck")
        assert "answers nothing" in stuck["annotations"]["summary"]
        assert {name for name, store in firing(server) if store == "stuck"} == {"KvringPathStuck"}
    assert client.wait(begun).ok
    client.wait_until(lambda: is_calm(server, "stuck"))


# By name and store, what becomes of its series in steps of a minute; and when it fires, in minutes.
Series = dict[str, str]
HOURS: dict[tuple[str, str], tuple[Series, list[int], list[int]]] = {
    ("KvringNoHits", "cold"): (
        {
            'kvring_lookups_total{result="miss"}': "0+100x120",
            'kvring_lookups_total{result="hit"}': "0x120",
            "kvring_chunks": "5x120",
        },
        [30, 110],
        [9, 15],
    ),
    ("KvringNoHits", "warm"): (
        {
            'kvring_lookups_total{result="miss"}': "0+100x120",
            'kvring_lookups_total{result="hit"}': "0+1x120",
            "kvring_chunks": "5x120",
        },
        [],
        [30, 110],
    ),
    ("KvringNoHits", "empty"): (
        {
            'kvring_lookups_total{result="miss"}': "0+100x120",
            'kvring_lookups_total{result="hit"}': "0x120",
            "kvring_chunks": "0x120",
        },
        [],
        [30, 110],
    ),
    ("KvringNoHits", "unused"): ({"kvring_path_unused": "0x60 1x60"}, [80], [50, 65]),
    ("KvringYoungEvictions", "small"): (
        {
            "kvring_evicted_unused_seconds_sum": "0+6000x120",
            "kvring_evicted_unused_seconds_count": "0+10x120",
            "kvring_used_bytes": "95x120",
            "kvring_capacity_bytes": "100x120",
        },
        [35, 110],
        [25],
    ),
    ("KvringYoungEvictions", "old"): (
        {
            "kvring_evicted_unused_seconds_sum": "0+72000x120",
            "kvring_evicted_unused_seconds_count": "0+10x120",
            "kvring_used_bytes": "95x120",
            "kvring_capacity_bytes": "100x120",
        },
        [],
        [35, 110],
    ),
    ("KvringYoungEvictions", "of-quota"): (
        {
            "kvring_evicted_unused_seconds_sum": "0+6000x120",
            "kvring_evicted_unused_seconds_count": "0+10x120",
            "kvring_used_bytes": "50x120",
            "kvring_capacity_bytes": "100x120",
        },
        [],
        [35, 110],
    ),
    ("KvringSlowDrive", "silent"): (
        {"kvring_slow_transfers_total": "0+2x120", "kvring_transfers_total": "0+100x120"},
        [15, 110],
        [8],
    ),
    ("KvringSlowDrive", "slow"): (
        {
            'kvring_latency_seconds_bucket{op="get",phase="device",le="0.5"}': "0+98x120",
            'kvring_latency_seconds_bucket{op="get",phase="device",le="1.0"}': "0+100x120",
            'kvring_latency_seconds_bucket{op="get",phase="device",le="+Inf"}': "0+100x120",
        },
        [15, 110],
        [8],
    ),
    ("KvringSlowDrive", "fast"): (
        {
            "kvring_slow_transfers_total": "0+1x120",
            "kvring_transfers_total": "0+1000x120",
            'kvring_latency_seconds_bucket{op="get",phase="device",le="0.5"}': "0+1000x120",
            'kvring_latency_seconds_bucket{op="get",phase="device",le="+Inf"}': "0+1001x120",
        },
        [],
        [15, 110],
    ),
    ("KvringIndexReset", "reset"): (
        {"kvring_index_reset": "1x1500", "kvring_open_seconds": "0+60x1500"},
        [1, 1430],
        [1450],
    ),
    ("KvringNoOwner", "ended"): ({"kvring_capacity_bytes": "100x30 stale"}, [40, 1400], [33, 1480]),
    ("KvringPathDead", "dead"): ({"kvring_path_up": "1x10 0x10 1x10"}, [13], [9, 11, 25]),
    ("KvringPathUnhealthy", "errors"): ({"kvring_path_healthy": "1x10 0x20"}, [20], [12]),
    ("KvringPathUnhealthy", "dead-too"): (
        {"kvring_path_healthy": "0x30", "kvring_path_up": "0x30"},
        [],
        [20],
    ),
}


def unit_test(alert: str, store: str) -> dict[str, Any]:
    """Return what promtool is to try of one alert."""
    series, fires, is_quiet = HOURS[alert, store]
    labels = f'job="kvring",instance="node1",store="{store}"'
    query = f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{alert}"}})'
    fired = [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"{name.partition('{')[0]}{{{labels},{name.partition('{')[2]}}}"}
            | {"values": values}
            for name, values in ((name.removesuffix("}"), one) for name, one in series.items())
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{minute}m", "exp_samples": fired if is_firing else []}
            for minutes, is_firing in ((fires, True), (is_quiet, False))
            for minute in minutes
        ],
    }


def test_alerts_fire_after_hours_and_not_before(tmp_path: Path) -> None:
    """By promtool, whose series are those that `assert_selectors_match` found to be exported."""
    promtool = need("promtool")
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [unit_test(*one) for one in HOURS],
    }
    (path := tmp_path / "unit-tests.yml").write_text(json.dumps(document), encoding="utf-8")
    command = [promtool, "test", "rules", str(path)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_each_alert_links_to_a_section_of_the_runbook() -> None:
    text = RULES.read_text(encoding="utf-8")
    links = re.findall(r"runbook_url: docs/how-to/operations.md#([\w-]+)\n", text)
    assert len(links) == len(names()) == 10
    runbook = (REPOSITORY / "docs/how-to/operations.md").read_text(encoding="utf-8")
    titles = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", runbook, re.M)}
    assert set(links) <= titles
    assert [name for name in names() if f"`{name}`" not in runbook] == []
