"""`kvring top` and `stats` on terminals of any width: nothing is cut, and each row has its name."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvring.cli.output import size_text
from kvring.cli.screen import screen
from kvring.frame import frame
from kvring.owner_requests import ask
from tests.python.conftest import HANG_DEADLINE_S, MIB, Client, is_readable, make_key, pattern

WIDTHS = (118, 100, 80, 60)
LINES = 24
LONG_PATH = "/mnt/" + "a-rather-long-name/" * 6 + "store"
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def busy_frame(client: Client, store_directory: Path) -> dict[str, Any]:
    """Make a frame of a store that has worked, with figures as long as they become."""
    before = ask(store_directory, None, {"ask": "stats"})
    keys = [make_key(number) for number in range(8)]
    client.store({key: pattern(MIB, 1) for key in keys})
    client.exists([*keys, "none"])
    for key in keys:
        assert client.load(key, MIB) == pattern(MIB, 1)
    client.delete(keys[:1])
    now = ask(store_directory, None, {"ask": "stats"})
    one = frame(before, now, 1.0)
    one |= {"loads_per_s": 123_456.0, "read_bytes_per_s": 123.4 * (1 << 30)}
    for number, phase in enumerate(("wait", "device", "total")):
        one["latency_ms"]["get"][phase] = {"p50": 1_234.56 + number, "p99": 12_345.67 + number}
    one["failures"]["late loads"] = {"now": 12, "since_open": 3_456}
    one["paths"] = [{**one["paths"][0], "path": LONG_PATH, "trouble": "7 reads in a row failed"}]
    return one


def printed(one: dict[str, Any], width: int, most_lines: int | None = None) -> list[str]:
    """Return the lines of a frame on a console of this width."""
    console = Console(file=io.StringIO(), width=width, height=LINES, markup=False)
    console.print(screen(console, Path("/mnt/store"), one, most_lines))
    file = console.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_figure_is_cut_and_each_row_has_its_name(busy_frame: dict[str, Any], width: int) -> None:
    lines = printed(busy_frame, width)
    assert not [line for line in lines if "…" in line or len(line) > width]
    (load,) = [line for line in lines if line.startswith("load ")]
    figures = load.removeprefix("load").replace(" GiB", "GiB").split()
    whole = ["123,456", size_text(busy_frame["read_bytes_per_s"]).replace(" ", "")]
    whole += [
        f"{busy_frame['latency_ms']['get'][phase][which]:,.2f}"
        for phase in ("wait", "device", "total")
        for which in ("p50", "p99")
    ]
    assert set(figures) <= set(whole)
    # What matters most is there in any width, and all of it in a wide one.
    assert {"123,456", whole[1], whole[-1]} <= set(figures)
    assert width < 100 or figures == whole
    assert [line.split()[0] for line in lines if re.match(r"(store|delete)  +[\d.,]+ ", line)]
    text = "".join(line.split("   ")[-1].strip() for line in lines)
    assert LONG_PATH in text
    assert "7 reads in a row failed" in " ".join(" ".join(lines).split())


def test_time_uptime_hit_ratio_and_errors_by_reason_are_told(busy_frame: dict[str, Any]) -> None:
    text = "\n".join(printed(busy_frame | {"open_s": 90_061}, 118))
    assert re.search(r"time +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+, open for 1 day, 1:01:01\n", text)
    assert re.search(r"errors +late loads 3,456 \(\+12\)\n", text)
    assert "88.9% hit (since the open 88.9%)" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_long_lists_end_with_how_many_more_there_are(
    busy_frame: dict[str, Any], width: int
) -> None:
    spaces = [{"name": f"model@{number}", "keys": 1, "allocated_bytes": 1} for number in range(20)]
    paths = [
        {**busy_frame["paths"][0], "path": f"/mnt/{number}", "trouble": ""} for number in range(30)
    ]
    paths[-1]["trouble"] = "the one that fails"
    one = busy_frame | {"namespaces": spaces, "paths": paths}
    for most_lines in (18, LINES, 40):
        lines = printed(one, width, most_lines)
        more = [line for line in lines if "more" in line]
        assert len(more) == 2
        shown = len([line for line in lines if "model@" in line])
        assert more[1].startswith(f"{20 - shown} more namespaces")
        assert "/mnt/29: the one that fails" in " ".join(lines)
        assert len(lines) <= max(most_lines, LINES)
    assert len([line for line in printed(one, width) if "model@" in line]) == 20


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["stats", "top"])
def test_on_a_terminal(client: Client, store_directory: Path, command: str, width: int) -> None:
    client.store({make_key(1): pattern(MIB, 1)})
    options = [] if command == "stats" else ["--count=1", "--interval=0.1"]
    text = output_on_terminal([command, str(store_directory), *options], width)
    lines = [line.rstrip() for line in text.splitlines()]
    assert not [line for line in lines if "…" in line or len(line) > width]
    for name in ("store", "time", "open in", "lookups", "errors", "in flight", "load"):
        assert any(line.startswith(name) for line in lines), (name, lines)
    assert any(line.endswith("test/model") for line in lines)
    assert "full" in text


def output_on_terminal(arguments: list[str], width: int) -> str:
    """Run the command on a terminal of this width; return what it shows there, without escapes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, width, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    } | {"TERM": "xterm"}
    command = [sys.executable, "-m", "kvring", *arguments]
    received = b""
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        # Its end is an error.
        with suppress(OSError):
            while is_readable(ours, HANG_DEADLINE_S):
                received += os.read(ours, 1 << 16)
        assert process.wait(HANG_DEADLINE_S) == 0, received
    os.close(ours)
    return ESCAPES.sub(b"", received).decode().replace("\r", "")
