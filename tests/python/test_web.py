"""`kvring top --web`, in a real browser."""

import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvring.cli.web import Page
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    make_key,
    make_memory,
    pattern,
)
from tests.support.pages import fetched

HOSTILE_NAME = "<img src=x onerror=\"document.title='owned'\">"
OPTIONS = ("--web", "--port=0", "--interval=0.2")


@contextmanager
def page_of(path: Path) -> Iterator[str]:
    """Run the command, and lend the address of its page."""
    command = [sys.executable, "-u", "-m", "kvring", "top", str(path), *OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"(http://127\.0\.0\.1:\d+/) shows ", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            process.terminate()


def rendered(directory: Path, url: str) -> str:
    """Open a page in Chromium, and return what it has become after some seconds."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    command = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={directory}/browser",
        "--virtual-time-budget=4000",
        "--dump-dom",
        url,
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_DEADLINE_S, check=True
    )
    return re.sub(r"<script>.*</script>", "", ended.stdout, flags=re.DOTALL)


def points(dom: str, chart: str) -> list[float]:
    """Return how high the lines of a chart are, 0 for its bottom."""
    drawn = re.search(rf'<svg id="{chart}".*?</svg>', dom, re.DOTALL)
    assert drawn is not None
    return [98 - float(y) for y in re.findall(r"[\d.]+,([\d.]+)", drawn[0].partition(">")[2])]


def test_the_page_shows_load_and_space_as_they_change(
    client: Client, store_directory: Path, tmp_path: Path
) -> None:
    with page_of(store_directory) as url:
        time.sleep(1)
        before = rendered(tmp_path, url)
        assert "test/model" not in before
        assert max(points(before, "bytes"), default=0) == 0
        ends = threading.Event()

        client.store({f"{HOSTILE_NAME}@0@0@ab": b"content"})

        def work() -> None:
            number = 0
            while not ends.is_set():
                key = make_key(number % 100)
                client.store({key: pattern(MIB, number % 100)})
                client.exists([key, make_key(5000)])
                client.get([key], [make_memory(MIB)])
                number += 1

        worker = threading.Thread(target=work)
        worker.start()
        try:
            time.sleep(3)
            after = rendered(tmp_path, url)
        finally:
            ends.set()
            worker.join()
    assert str(store_directory) in after
    assert "test/model" in after
    # A name of a model is text there, whatever is in it.
    assert "&lt;img src=x onerror=" in after
    assert "<img" not in after
    assert "<title>owned" not in after
    assert ">well<" in after
    assert max(points(after, "bytes")) > 50
    assert max(points(after, "loads")) > 50
    assert max(points(after, "hits")) > 10
    assert re.search(r"chunks</td><td[^>]*>[1-9]", after)
    assert "waiting for the store" not in after


def test_it_says_when_the_store_is_closed_and_goes_on_with_the_next_owner(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    def last(port: int) -> dict[str, object]:
        frames = json.loads(fetched(port, "/frames")[1])
        return dict(frames[-1]) if frames else {}

    client = open_client()
    with page_of(store_directory) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        client.wait_until(lambda: "process_id" in last(port))
        client.connector.close()
        client.wait_until(lambda: "nobody has" in str(last(port).get("failure")))
        client = open_client()
        client.wait_until(lambda: "process_id" in last(port))


def test_a_clock_that_is_set_back_holds_no_frame_up() -> None:
    with closing(Page(0)) as page:
        port = int(page.url.rsplit(":", 1)[1].strip("/"))
        moments = [1000.5, 1001.25, 400.125, 401.75]
        page.show({"time_s": moment} for moment in moments)
        for number, moment in enumerate(moments):
            status, found = fetched(port, f"/frames?since_s={moment}")
            assert status == 200
            assert [one["time_s"] for one in json.loads(found)] == moments[number + 1 :]


def test_what_is_asked_wrongly_is_refused(client: Client, store_directory: Path) -> None:
    assert client.stat("keys") == 0
    with page_of(store_directory) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        status, page = fetched(port, "/")
        assert (status, "<title>kvring</title>" in page) == (200, True)
        # Nothing comes from elsewhere.
        assert not re.search(r"(?:src|href)=", page)
        assert fetched(port, "/none")[0] == 404
        assert fetched(port, "/frames?since_s=x")[0] == 400
        assert fetched(port, "/frames?since_s=1e300") == (200, "[]")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_DEADLINE_S)
        connection.request("GET", "/frames", headers={"Host": f"evil.example:{port}"})
        assert connection.getresponse().status == 403
        connection.close()
        taken = subprocess.run(
            [
                sys.executable,
                "-m",
                "kvring",
                "top",
                str(store_directory),
                "--web",
                f"--port={port}",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_DEADLINE_S,
        )
        assert (taken.returncode, "cannot be had" in taken.stderr) == (1, True)
