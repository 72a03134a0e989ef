"""The page of a store: where it is, what is on it, and frames to fill it with."""

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import Tab
from tests.support.pages import fetched

START_S = float(int(time.time()) - 200)
_OPTIONS = ("--web", "--port=0", "--interval=0.2")
_DEADLINE_S = 60.0
_MIB = 1 << 20


@contextmanager
def page_of(path: Path) -> Iterator[str]:
    """Run the command, and lend the address of its page."""
    command = [sys.executable, "-u", "-m", "kvring", "top", str(path), *_OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"(http://127\.0\.0\.1:\d+/) shows ", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            process.terminate()


def port_of(url: str) -> int:
    """Return the port of an address."""
    return int(url.rsplit(":", 1)[1].strip("/"))


def asked_as(host: str, port: int, path: str) -> http.client.HTTPResponse:
    """Return the answer to who came under that name of the machine."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_S)) as asking:
        asking.request("GET", path, headers={"Host": f"{host}:{port}"})
        return asking.getresponse()


def document(port: int, query: str = "") -> dict[str, Any]:
    """Return the samples that the page asks for."""
    status, text = fetched(port, f"/frames{query}")
    assert status == 200
    return dict(json.loads(text))


def text_of(tab: Tab, selector: str) -> str:
    """Return the text of an element."""
    return str(tab.value(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))


def labels(tab: Tab, chart: str, axis: str) -> list[str]:
    """Return the labels of an axis: "value" or "time"."""
    selector = json.dumps(f"#{chart} text.{axis}")
    return list(
        tab.value(f"[...document.querySelectorAll({selector})].map(one => one.textContent)")
    )


def heights(tab: Tab, chart: str, line: int = 0) -> list[float]:
    """Return how far up the points of a line are, in shares of the chart."""
    selector = json.dumps(f"#{chart} polyline.line{line}")
    lines = tab.value(
        f"[...document.querySelectorAll({selector})].map(one => one.getAttribute('points'))"
    )
    return [(130 - float(y)) / 118 for line in lines for y in re.findall(r",([\d.]+)", line)]


def choose(tab: Tab, name: str, value: str) -> None:
    """Choose a value of a list on the page."""
    tab.value(
        f"{{ const it = document.getElementById('{name}'); it.value = '{value}';"
        " it.dispatchEvent(new Event('change')); }"
    )


def made_frame(number: int, **changes: Any) -> dict[str, Any]:
    """Return a frame of a store, as one of its owner's answers a second after another makes it."""
    total_ms = changes.pop("total_ms", 5.0)
    latency = {"p50": total_ms / 2, "p99": total_ms}
    one: dict[str, Any] = {
        "time_s": START_S + number,
        "over_s": 1.0,
        "host": "node-1",
        "process_id": 1,
        "open_s": 93_600,
        "version": "0.1.0",
        "engine": "io_uring",
        "read_bytes_per_s": 50.0 * _MIB,
        "written_bytes_per_s": 0.0,
        **dict.fromkeys(("loads_per_s", "stores_per_s", "lookups_per_s", "evictions_per_s"), 10.0),
        **dict.fromkeys((f"failed_{of}_per_s" for of in ("loads", "stores", "syncs")), 0.0),
        "lookup_hit_ratio": 0.5,
        "load_hit_ratio": 1.0,
        "hit_ratio_by_capacity": {"1": 0.5, "1.5": 0.6, "2": 0.75},
        "latency_ms": {
            op: dict.fromkeys(("wait", "device", "total"), latency) for op in ("get", "set")
        },
        "failures": {"queue full": {"now": 0, "since_open": 0}},
        "in_flight": 0,
        "store_queue_bytes": 0,
        "space": dict.fromkeys(("keys", "allocated_bytes", "leased_bytes", "pinned_bytes"), 1),
        "namespaces": [],
        "paths": [
            {
                "path": "/mnt/kvring",
                "in_use": True,
                **dict.fromkeys(("reason", "trouble", "note"), ""),
                "used_bytes": _MIB,
                "capacity_bytes": 2 * _MIB,
            }
        ],
    }
    return one | changes
