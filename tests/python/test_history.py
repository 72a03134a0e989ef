"""What an owner remembers of its store, and what a frame of it tells."""

import json
from pathlib import Path

import pytest

from kvring.frame import frame
from kvring.history import History
from kvring.owner_requests import ask
from tests.python.conftest import Client, make_key
from tests.support.web_page import made_frame


def test_an_hour_is_kept_in_bounded_memory() -> None:
    kept = History("store", 5.0)
    for number in range(0, 8000, 5):
        kept.add(made_frame(number))
    found = json.loads(kept.document())
    times = [row[0] for row in found["samples"]]
    assert (len(times), times[-1] - times[0]) == (721, pytest.approx(3600))
    assert len(kept.document()) < 256 << 10
    quick = History("store", 0.1)
    for number in range(6000):
        quick.add(made_frame(number // 10))
    assert len(json.loads(quick.document())["samples"]) == 4320


def test_a_clock_that_is_set_back_holds_no_sample_up() -> None:
    moments = [1000.5, 1001.25, 400.125, 401.75]
    kept = History("store", 1.0)
    seen = json.loads(kept.document())
    for moment in moments:
        kept.add(made_frame(0, time_s=moment))
        seen = json.loads(kept.document(seen["series"], seen["next"]))
        assert [row[0] for row in seen["samples"]] == [moment]
    # What another process had told says nothing about this one.
    assert len(json.loads(kept.document("another", 4))["samples"]) == len(moments)
    assert json.loads(kept.document(seen["series"], 10**9))["samples"] == []


def test_failures_are_counted_by_reason_and_in_a_second(
    client: Client, store_directory: Path
) -> None:
    before = ask(store_directory, None, {"ask": "stats"})
    client.set([make_key(1)], [bytes(client.stat("max_chunk_bytes") + 1)])
    found = frame(before, ask(store_directory, None, {"ask": "stats"}), 2.0)
    assert found["failures"]["too long"] == {"now": 1, "since_open": 1}
    assert (found["failed_stores_per_s"], found["failed_loads_per_s"]) == (0.5, 0)


def test_columns_of_another_version_are_taken_by_name() -> None:
    document = json.loads(History("store", 1.0).document())
    columns = document["columns"]
    others = ["new", *reversed(columns[:-1])]
    row = [number * 1.5 for number in range(len(others))]
    document |= {"columns": others, "samples": [row]}
    history = History("store", 1.0)
    history.add_document(document)
    (sample,) = json.loads(history.document())["samples"]
    expected = dict(zip(others, row, strict=True)) | {columns[-1]: []}
    assert dict(zip(columns, sample, strict=True)) == {name: expected[name] for name in columns}
