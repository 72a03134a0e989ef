"""The page of `kvring top --web` and of `metrics_port`, in a real browser."""

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli.web import Page
from kvring.owner_requests import ask
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    make_key,
    make_memory,
    pattern,
    until,
)
from tests.support.browser import Tab, chromium
from tests.support.pages import fetched
from tests.support.web_page import (
    asked_as,
    choose,
    document,
    heights,
    labels,
    made_frame,
    page_of,
    port_of,
    text_of,
)

HOSTILE_NAME = "<img src=x onerror=\"document.title='owned'\">"
# Longer than any screen is wide; the second has what turns the direction of a text.
LONG_NAME = "organisation/" + "a-model-with-a-long-name-" * 12
TURNING_NAME = "meta-llama/\u202eLlama-3.1-8B\x00\n-Instruct"
# Which line of each chart has something to show, and its unit.
CHARTS = {
    "bytes": (0, "/s"),
    "loads": (0, " ms"),
    "saves": (0, " ms"),
    "hits": (0, " %"),
    "failed": (1, "/s"),
}


@pytest.fixture
def tab() -> Iterator[Tab]:
    """A tab of Chromium, whose pages throw nothing."""
    with chromium() as opened:
        yield opened
        assert opened.errors == []


def assert_fits(tab: Tab, width: int) -> None:
    """Check that nothing is wider than the window, and no card's content than the card."""
    tab.resize(width, 900)
    until("the width", lambda: tab.value("innerWidth") == width)
    assert tab.value("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('section')].filter(it => it.scrollWidth > it.clientWidth)"
    assert tab.value(f"{wide}.map(it => it.textContent)") == []


@contextmanager
def page_with(frames: list[dict[str, Any]], interval_s: float = 1000) -> Iterator[Page]:
    with closing(Page(0, "/mnt/kvring", interval_s)) as page:
        page.show(frames)
        yield page


def test_the_page_shows_load_space_and_failures_as_they_change(
    client: Client, store_directory: Path, tab: Tab
) -> None:
    with page_of(store_directory) as url:
        tab.open(url)
        until("the page", lambda: text_of(tab, "#state") == "well")
        assert max(heights(tab, "bytes"), default=0) == 0
        assert "test/model" not in text_of(tab, "main")
        # A model may have any name.
        client.store({f"{name}@0@0@ab": b"content" for name in (HOSTILE_NAME, LONG_NAME)})
        ends = threading.Event()
        too_long = bytes(client.stat("max_chunk_bytes") + 1)

        def work() -> None:
            number = 0
            while not ends.is_set():
                key = make_key(number % 100)
                client.store({key: pattern(MIB, number % 100)})
                client.exists([key, make_key(5000)])
                client.get([key], [make_memory(MIB)])
                if number % 20 == 0:
                    client.set([make_key(6000)], [too_long])
                number += 1

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for chart, (line, unit) in CHARTS.items():
                until(chart, lambda: max(heights(tab, chart, line), default=0) > 0.1)  # noqa: B023
                assert labels(tab, chart, "value")[-1].endswith(unit)
                assert re.fullmatch(r"\d\d:\d\d(:\d\d)?", labels(tab, chart, "time")[0])
            until("a name", lambda: "test/model" in text_of(tab, "#namespaces"))
        finally:
            ends.set()
            worker.join()
        assert text_of(tab, "#store").strip() == str(store_directory)
        facts = text_of(tab, "#facts")
        assert f"host {os.uname().nodename}process {os.getpid()}up " in facts
        assert re.search(r"last update \d\d:\d\d:\d\d \S+, \d+ s ago", facts)
        well = re.compile(r"well, but \d+ failures? in 10 min")
        until("the failures", lambda: well.fullmatch(text_of(tab, "#state")) is not None)
        assert re.search(r"too long[1-9]\d*[1-9]", text_of(tab, "#failures"))
        # A name of a model is text there, whatever is in it.
        assert HOSTILE_NAME in text_of(tab, "#namespaces")
        assert tab.value("document.querySelectorAll('img').length") == 0
        assert tab.value("document.title") == "kvring"
        for width in (1280, 420, 320):
            assert_fits(tab, width)


def test_names_break_between_their_parts_only_and_fit_a_narrow_window(tab: Tab) -> None:
    names = [HOSTILE_NAME, LONG_NAME, TURNING_NAME, "x" * 4096, ""]
    namespaces = [{"name": name, "keys": 1, "allocated_bytes": 1} for name in names]
    path = made_frame(0)["paths"][0]
    trouble = "EIO: " + "y" * 300
    paths = [path | {"path": f"/mnt/{LONG_NAME}", "trouble": trouble}]
    with page_with([made_frame(0), made_frame(1, namespaces=namespaces, paths=paths)]) as page:
        tab.open(page.url, 420)
        until("the page", lambda: "EIO" in text_of(tab, "#state"))
        for width in (420, 320):
            assert_fits(tab, width)
        parts = tab.value(
            "[...document.querySelectorAll('#namespaces bdi')].map(it => it.textContent)"
        )
        assert parts[:3] == ["<img src=x onerror=\"document.title='owned'\">", *parts[1:3]]
        assert parts[1] == "organisation/"
        # A part takes one line.
        tall = "[...document.querySelectorAll('bdi')].filter(it => it.getClientRects().length > 1)"
        assert tab.value(f"{tall}.length") == 0
        assert tab.value("document.querySelectorAll('img').length") == 0


def test_one_spike_does_not_flatten_the_rest_unless_that_is_chosen(tab: Tab) -> None:
    frames = [
        made_frame(number, total_ms=9000.0 if number == 100 else 5.0 + number % 3)
        for number in range(200)
    ]
    with page_with(frames) as page:
        tab.open(page.url)
        until("the page", lambda: labels(tab, "loads", "value") != [])
        assert labels(tab, "loads", "value") == ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms"]
        assert min(heights(tab, "loads")) > 0.5
        marks = "document.querySelectorAll('#loads polygon').length"
        assert tab.value(marks) == 4
        spike = time.strftime("%H:%M:%S", time.localtime(frames[100]["time_s"]))
        assert f"▲ 4 clipped, up to 9 s at {spike}" in text_of(tab, "#loads figcaption")
        tab.value("document.getElementById('clip').click()")
        assert labels(tab, "loads", "value")[-1] == "10 s"
        assert (min(heights(tab, "loads")) < 0.01, tab.value(marks)) == (True, 0)
        # The choice is in the address, for who opens it next.
        choose(tab, "scale", "log")
        assert tab.value("location.hash") == "#clip=off&scale=log"
        assert labels(tab, "loads", "value") == ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]
        assert heights(tab, "loads")[0] == pytest.approx(math.log10(5) / 4, abs=0.01)
        # Nothing is 0 there where nothing is measured.
        assert labels(tab, "failed", "value")[0] == "0/s"
        choose(tab, "scale", "linear")
        assert labels(tab, "loads", "value")[0] == "0 ms"


def test_the_values_under_the_pointer_are_told(tab: Tab) -> None:
    with page_with([made_frame(0), made_frame(50, total_ms=70.0), made_frame(100)]) as page:
        tab.open(page.url)
        until("the page", lambda: "total p99 5 ms" in text_of(tab, "#loads figcaption"))
        box = tab.value(
            "(({x, y, width}) => [x, y, width])(document.getElementById('loads')"
            ".getBoundingClientRect())"
        )
        middle = box[0] + (66 + box[2] - 10) / 2
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle, y=box[1] + 50)
        until("that value", lambda: "total p99 70 ms" in text_of(tab, "#loads figcaption"))
        assert "read 50 MiB/s" in text_of(tab, "#bytes figcaption")


def test_it_says_that_nothing_new_comes(tab: Tab) -> None:
    with page_with([made_frame(0), made_frame(1)], interval_s=0.1) as page:
        tab.open(page.url)
        until("that it is stale", lambda: "stale: " in text_of(tab, "#state"))

        def is_well() -> bool:
            page.show([made_frame(2)])
            return text_of(tab, "#state") == "well"

        until("another one", is_well)
        assert "up 1 d 2 h" in text_of(tab, "#facts")
        page.fail("the owner is stopped")
        old = "the owner is stopped; what is below is old"
        until("what it is", lambda: text_of(tab, "#state") == old)
    until("that nobody answers", lambda: "no answer from 127.0.0.1" in text_of(tab, "#state"))


def test_it_says_when_the_store_is_closed_and_goes_on_with_the_next_owner(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client()
    with page_of(store_directory) as url:
        port = port_of(url)
        assert "nobody has" not in str(document(port)["failure"])
        client.connector.close()
        client.wait_until(lambda: "nobody has" in str(document(port)["failure"]))
        count = document(port)["next"]
        client = open_client()
        client.wait_until(lambda: document(port)["next"] > count)
        assert document(port)["failure"] is None


def test_a_page_that_is_opened_later_shows_what_was_before(
    open_client: Callable[..., Client],
    store_directory: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    tab: Tab,
) -> None:
    monkeypatch.setattr("kvring.sampler.INTERVAL_S", 0.05)
    client = open_client(metrics_port=port)
    client.store({make_key(1): pattern(MIB, 1)})
    written = "written_bytes_per_s"

    def samples(port: int) -> list[dict[str, Any]]:
        found = document(port)
        return [dict(zip(found["columns"], row, strict=True)) for row in found["samples"]]

    client.wait_until(lambda: any(one[written] for one in samples(port)))
    count = len(samples(port))
    client.wait_until(lambda: len(samples(port)) > count + 5)
    # Also with the command, which was not there then.
    with page_of(store_directory) as url:
        assert any(one[written] for one in samples(port_of(url)))
        assert len(ask(store_directory, None, {"ask": "history"})["samples"]) > count
    tab.open(f"http://localhost:{port}/")
    until("what was written", lambda: max(heights(tab, "bytes", 1), default=0) > 0.5)
    assert text_of(tab, "#store").strip() == str(store_directory)


def test_stores_of_a_process_are_chosen_by_name(
    open_client: Callable[..., Client], tmp_path: Path, port: int, tab: Tab
) -> None:
    client = open_client(metrics_port=port)
    first = client.connector.history.name
    second = str(tmp_path / "<second>")
    with kvring.Connector(second, "64MiB", metrics_port=port):
        tab.open(f"http://127.0.0.1:{port}/")
        until("the first one", lambda: text_of(tab, "#store").strip() == first)
        assert tab.value("[...document.getElementById('stores').options].map(it => it.value)") == [
            first,
            second,
        ]
        choose(tab, "stores", second)
        until("the second one", lambda: text_of(tab, "#store").strip() == second)
    until("its end", lambda: f"{second} no longer open" in text_of(tab, "#state"))
    assert client.stat("keys") == 0


def test_what_is_asked_wrongly_is_refused(
    open_client: Callable[..., Client], store_directory: Path, port: int
) -> None:
    client = open_client(metrics_port=port)
    assert client.stat("keys") == 0
    with page_of(store_directory) as url:
        for one in (port_of(url), port):
            status, page = fetched(one, "/")
            assert (status, "<title>kvring</title>" in page) == (200, True)
            # Nothing comes from elsewhere.
            assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {
                "page.css",
                "page.js",
                "data:,",
            }
            assert fetched(one, "/none")[0] == 404
            assert fetched(one, "/../metrics_server.py")[0] == 404
            assert fetched(one, "/frames?after=x")[0] == 400
            assert "no longer open" in document(one, "?store=%ff")["failure"]
            for path in ("/", "/frames", "/page.js"):
                for host, expected in (("evil.example", 403), ("localhost", 200)):
                    answer = asked_as(host, one, path)
                    assert answer.status == expected
                    if expected == 403:
                        assert answer.reason == f"open it as http://127.0.0.1:{one}/"
                    if expected == 200:
                        policy = answer.getheader("Content-Security-Policy", "")
                        assert policy.startswith("default-src 'self'; ")
                        assert "unsafe" not in policy
        taken = subprocess.run(
            [
                sys.executable,
                "-m",
                "kvring",
                "top",
                str(store_directory),
                "--web",
                f"--port={port_of(url)}",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_DEADLINE_S,
        )
        assert (taken.returncode, "cannot be had" in taken.stderr) == (1, True)
