"""Metrics for Prometheus, as its default registry has them."""

import gc
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import kvring
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    is_readable,
    make_key,
    make_memory,
    pattern,
    until,
)
from tests.support.pages import fetched

LABELS = {
    *("store", "path", "op", "phase", "result", "reason", "capacity", "namespace", "outcome"),
    *("stream", "content"),
}


def scraped() -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Return the values of all series of kvring's, by name and labels."""
    page = generate_latest(REGISTRY).decode()
    values: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith("kvring_"):
                labels = frozenset(sample.labels.items())
                assert labels not in values.setdefault(sample.name, {}), (sample, "twice")
                values[sample.name][labels] = sample.value
    return values


def value(name: str, store: Path, **labels: str) -> float:
    """Return the value of one series."""
    return scraped()[name][frozenset({"store": str(store), **labels}.items())]


def test_what_happens_is_counted(client: Client, store_directory: Path) -> None:
    keys = [make_key(number) for number in range(3)]
    client.store({key: pattern(10_000, 1) for key in keys})
    client.store({keys[0]: pattern(10_000, 1)})
    client.get([*keys, "none"], [make_memory(10_000) for _ in range(4)])
    client.exists([keys[0], "none", "none either"])
    client.delete([keys[0], "none"])
    assert value("kvring_stores_total", store_directory, result="stored") == 3
    assert value("kvring_stores_total", store_directory, result="unchanged") == 1
    assert value("kvring_loads_total", store_directory, result="hit") == 3
    assert value("kvring_loads_total", store_directory, result="miss") == 1
    assert value("kvring_lookups_total", store_directory, result="miss") == 2
    assert value("kvring_deletes_total", store_directory, result="absent") == 1
    assert value("kvring_transferred_bytes_total", store_directory, op="write") == 30_000
    path = str(store_directory)
    assert value("kvring_chunks", store_directory, path=path) == 2
    assert value("kvring_allocated_bytes", store_directory, path=path) == 2 * 12_288
    assert value("kvring_capacity_bytes", store_directory, path=path) == 256 * MIB
    assert value("kvring_path_up", store_directory, path=path) == 1
    assert value("kvring_path_healthy", store_directory, path=path) == 1
    namespace = keys[0].partition("@")[0]
    assert value("kvring_namespace_bytes", store_directory, namespace=namespace) == 2 * 12_288
    assert value("kvring_recovered_records", store_directory, outcome="kept") == 0
    assert value("kvring_index_reset", store_directory) == 0


def test_what_admission_does_is_told(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client(admit="second_use", write_budget="1GiB")
    chunks = {make_key(number): pattern(MIB, 1) for number in range(50)}
    client.store(chunks)
    assert value("kvring_unwritten_bytes_total", store_directory, reason="not_admitted") == 50 * MIB
    assert value("kvring_returned_keys_total", store_directory) == 0
    client.store(chunks)
    # An hour's worth is 42.7 MiB.
    written = value("kvring_transferred_bytes_total", store_directory, op="write")
    spared = value("kvring_unwritten_bytes_total", store_directory, reason="over_write_budget")
    assert 0 < spared == 50 * MIB - written
    assert value("kvring_returned_keys_total", store_directory) == written / MIB
    stats = client.connector.stats()
    assert value("kvring_eviction_bonus", store_directory) == stats["eviction_bonus"] > 0
    assert value("kvring_admitted_share", store_directory) == 1


def test_failures_add_up_by_the_codes_of_their_callers(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client("64MiB", quotas={"test/model": "1MiB"})
    codes = client.wait_codes(
        client.connector.submit_batch_set([make_key(number, salt)], [make_memory(length_bytes)])
        for number, (salt, length_bytes) in enumerate([("", 2 * MIB), ("a", 70 * MIB)] * 5)
    )
    store_directory.rename(moved := store_directory.with_name("moved"))
    client.wait_until(lambda: bool(client.connector.stats()["paths"][0]["reason"]))
    path = str(store_directory)
    assert value("kvring_path_up", store_directory, path=path) == 0
    assert value("kvring_path_healthy", store_directory, path=path) == 0
    codes |= client.wait_codes([client.connector.submit_batch_set(["key"], [b"content"])])
    moved.rename(store_directory)
    client.wait_until(lambda: value("kvring_path_up", store_directory, path=path) == 1)
    counted = {
        dict(labels)["reason"]: number
        for labels, number in scraped()["kvring_store_failures_total"].items()
        if ("store", path) in labels
    }
    assert {"quota_full", "too_long", "unavailable"} == set(codes.values())
    assert {reason: number for reason, number in counted.items() if number} == Counter(
        codes.values()
    )
    failed = value("kvring_stores_total", store_directory, result="failed")
    assert failed == sum(counted.values()) == len(codes)


def test_write_streams_are_told(
    open_client: Callable[..., Client], store_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # File systems ignore them, so that none is needed here but in the eyes of kvring.
    monkeypatch.setenv("KVRING_TUNING", json.dumps({"write_streams": 4}))
    client = open_client(write_streams="lifetime")
    if not client.connector.stats()["engine"].startswith("io_uring"):
        pytest.skip("threads tell a drive of no streams")
    client.store({make_key(number): pattern(10_000, 1) for number in range(3)})
    labels = {"path": str(store_directory), "stream": "2", "content": "first_time"}
    name = "kvring_stream_written_bytes_total"
    assert value(name, store_directory, **labels) == 3 * 12_288, "in whole blocks"
    labels |= {"stream": "3", "content": "returned"}
    assert value(name, store_directory, **labels) == 0


def test_histograms_are_histograms(client: Client, store_directory: Path) -> None:
    client.store({make_key(number): pattern(4096, number) for number in range(20)})
    (found,) = {
        number
        for labels, number in scraped()["kvring_latency_seconds_count"].items()
        if {("op", "set"), ("phase", "total"), ("store", str(store_directory))} <= labels
    }
    assert found == 20
    buckets: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for labels, number in scraped()["kvring_latency_seconds_bucket"].items():
        named = dict(labels)
        if named["store"] == str(store_directory):
            of = buckets.setdefault((named["op"], named["phase"]), [])
            of.append((float(named["le"]), number))
    assert len(buckets) == 9
    for series in buckets.values():
        counts = [number for _, number in sorted(series)]
        assert counts == sorted(counts)
    assert sorted(buckets["set", "total"])[-1] == (float("inf"), 20)
    assert value("kvring_latency_seconds_sum", store_directory, op="set", phase="total") > 0


def test_names_and_labels_are_those_of_the_field(client: Client) -> None:
    client.store({"key": pattern(4096, 1)})
    page = generate_latest(REGISTRY).decode()
    families = [
        family
        for family in text_string_to_metric_families(page)
        if family.name.startswith("kvring_")
    ]
    assert len(families) > 25
    for family in families:
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert set(sample.labels) <= LABELS | {"le", "engine", "version"}, sample
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)


def test_each_open_store_is_told_of_and_no_other(
    open_client: Callable[..., Client], store_directory: Path, tmp_path: Path
) -> None:
    def told() -> set[str]:
        series = scraped().get("kvring_io_threads", {})
        stores = {dict(labels)["store"] for labels in series}
        return stores & {str(store_directory), str(tmp_path / "other")}

    client = open_client()
    other = kvring.Connector(tmp_path / "other", "16MiB")
    assert told() == {str(store_directory), str(tmp_path / "other")}
    other.close()
    assert told() == {str(store_directory)}
    client.connector.close()
    assert told() == set()
    again = kvring.Connector(tmp_path / "other", "16MiB")
    assert told() == {str(tmp_path / "other")}
    del again
    gc.collect()
    assert told() == set(), "it keeps no store open"


def test_namespaces_are_bounded(client: Client, store_directory: Path) -> None:
    client.store({make_key(1, salt=str(salt)): pattern(4096, salt) for salt in range(60)})
    series = {
        dict(labels)["namespace"]: number
        for labels, number in scraped()["kvring_namespace_bytes"].items()
        if dict(labels)["store"] == str(store_directory)
    }
    assert len(series) == 51
    assert series["(others)"] == 10 * 4096
    assert sum(series.values()) == 60 * 4096


def test_a_store_opens_without_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(store: kvring.Connector) -> None:
        raise ImportError("no module of that name")

    monkeypatch.setattr("kvring.metrics.collector.add", fail)
    with kvring.Connector(tmp_path / "store", "16MiB") as connector:
        client = Client(connector)
        client.store({"key": pattern(4096, 1)})
        assert client.load("key", 4096) == pattern(4096, 1)
    assert "Prometheus gets no metrics of this store" in caplog.text


def test_the_endpoint_serves_metrics_and_health(
    open_client: Callable[..., Client], tmp_path: Path, port: int
) -> None:
    client = open_client(metrics_port=port)
    client.store({make_key(1): pattern(10_000, 1)})
    status, page = fetched(port, "/metrics")
    assert status == 200
    assert 'kvring_stores_total{result="stored",store="' in page
    status, text = fetched(port, "/healthz")
    assert (status, json.loads(text)["healthy"]) == (200, True)
    assert fetched(port, "/none")[0] == 404
    for path, expected in (("/", 200), ("/metrics", 200), ("/healthz", 200), ("/none", 404)):
        with closing(HTTPConnection("127.0.0.1", port, timeout=HANG_DEADLINE_S)) as connection:
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (expected, b"")
            assert int(answer.getheader("Content-Length", "0")) > 0
    # Another store of the process shares it; the last one that is closed gives it back.
    with kvring.Connector(tmp_path / "second", "64MiB", metrics_port=str(port)):
        assert len(json.loads(fetched(port, "/healthz")[1])["paths"]) == 2
        client.connector.close()
        assert len(json.loads(fetched(port, "/healthz")[1])["paths"]) == 1
    with pytest.raises(ConnectionRefusedError):
        fetched(port, "/healthz")
    with kvring.Connector(tmp_path / "second", "64MiB", metrics_port=port):
        assert fetched(port, "/healthz")[0] == 200


def test_slow_strangers_keep_nobody_out(open_client: Callable[..., Client], port: int) -> None:
    open_client(metrics_port=port)
    with ExitStack() as stack:
        strangers = []
        for _ in range(40):
            stranger = socket.create_connection(("127.0.0.1", port), timeout=HANG_DEADLINE_S)
            strangers.append(stack.enter_context(stranger))
            stranger.sendall(b"GET /healthz HTTP/1.0\r\nX-Slow: ")
        assert fetched(port, "/healthz")[0] == 200
        assert fetched(port, "/metrics")[0] == 200
        # Those that came first were hung up on.
        assert strangers[0].recv(1) == b""


def test_a_request_has_a_deadline_and_a_length(
    open_client: Callable[..., Client], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvring.http_server._DEADLINE_S", 1.0)
    open_client(metrics_port=port)
    for filler in (b"a", b"a" * 4000):
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_DEADLINE_S) as stranger:
            stranger.sendall(b"GET /healthz HTTP/1.0\r\nX-Slow: ")
            until("the end of it", lambda: _is_hung_up_on(stranger, filler))  # noqa: B023


def _is_hung_up_on(stranger: socket.socket, filler: bytes) -> bool:
    """Send something more, so that no single wait of the server is long."""
    try:
        stranger.sendall(filler)
        return is_readable(stranger, 0.05) and not stranger.recv(1)
    except ConnectionError:
        return True


def test_a_port_that_is_taken_does_not_stand_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with kvring.Connector(tmp_path / "store", "64MiB", metrics_port=number) as connector:
            assert connector.stats()["keys"] == 0
            assert f"metrics_port {number}: nothing is served there" in caplog.text
            assert "; name another port, or 'off'" in caplog.text


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_endpoint_is_not_that_of_a_fork(open_client: Callable[..., Client], port: int) -> None:
    client = open_client(metrics_port=port)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        assert fetched(port, "/healthz")[0] == 200
        client.connector.close()
        with pytest.raises(ConnectionRefusedError):
            fetched(port, "/healthz")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
