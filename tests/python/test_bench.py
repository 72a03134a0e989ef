"""`kvring bench`: what it prints, what it refuses, and that it leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring._native import BenchPlan, BenchRun, bench_options
from kvring.cli import main
from kvring.cli.machine import file_system
from tests.python.conftest import CAPACITY_BYTES, HANG_DEADLINE_S, MIB, Client, pattern
from tests.support.tuning import tuned

SMALL = ("--bs", "16KiB", "--size", "1MiB")
KEYS = 64
PERCENTILES = ["mean", "p50", "p90", "p99", "p99.9", "max"]


def bench(path: Path, *arguments: str) -> int:
    """Run the command in this process."""
    return main(["bench", "--path", str(path), *arguments])


def bench_json(
    capsys: pytest.CaptureFixture[str], path: Path, *arguments: str, status: int = 0
) -> dict[str, Any]:
    """Run the command in this process and return its document."""
    assert bench(path, "--json", *arguments) == status
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert type(result) is dict
    return result


def refusal(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    """Return what is said of wrong arguments."""
    assert bench(path, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert list(path.iterdir()) == []
    return printed.err


def start_bench(path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvring", "bench", "--path", str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What is ignored here, as below nohup, would be ignored there too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_data(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the command has made its store."""
    deadline_s = time.monotonic() + HANG_DEADLINE_S
    while not list(path.glob("kvring-bench-*/data-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("rw", "classes", "phases"),
    [
        ("read", ["get"], ["fill"]),
        ("write", ["set"], ["check"]),
        ("rw", ["get", "set"], ["fill", "check"]),
        ("randread", ["get"], ["fill"]),
        ("randwrite", ["set"], ["check"]),
        ("randrw", ["get", "set"], ["fill", "check"]),
        ("exists", ["exists"], ["fill"]),
        ("delete", ["delete"], ["fill"]),
    ],
)
def test_each_pattern_as_json(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    rw: str,
    classes: list[str],
    phases: list[str],
) -> None:
    result = bench_json(capsys, tmp_path, "--rw", rw, *SMALL, "--batch=2", "--verify")
    assert list(result["measured"]["classes"]) == classes
    assert [name for name in ("fill", "check") if result[name]] == phases
    for phase in ("measured", *phases):
        figures = result[phase]["classes"].values()
        assert sum(one["keys"] for one in figures) == KEYS
    moved_bytes = 0 if rw in ("exists", "delete") else MIB
    assert result["measured"]["bytes"] == moved_bytes
    for name, one in result["measured"]["classes"].items():
        assert one["hits"] == (one["keys"] if name in ("get", "exists") else 0)
        assert (one["misses"], one["failed"]) == (0, 0)
        assert one["ops_per_s"] > 0
        assert (one["mb_per_s"] > 0) == (moved_bytes > 0)
        latency = one["latency_us"]
        assert list(latency) == PERCENTILES
        ordered = [latency[name] for name in PERCENTILES[1:]]
        assert ordered == sorted(ordered)
    assert (result["measured"]["cpu_s_per_gb"] is None) == (moved_bytes == 0)
    assert result["errors"]["messages"] == []
    assert not result["has_errors"]
    assert result["workload"]["rw"] == rw
    assert result["store"]["engine"].startswith("io_uring")
    assert type(result["store"]["direct_io"]) is bool
    assert result["machine"]["kernel"] == os.uname().release
    assert result["machine"]["cpu_count"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_what_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert bench(tmp_path, "--rw", "randrw", *SMALL, "--batch=2", "--align=1") == 0
    text = capsys.readouterr().out
    for part in (
        "get",
        "set",
        "MB/s",
        "ops/s",
        *(f"latency {name}" for name in PERCENTILES[1:]),
        "hits",
        "misses",
        "failed",
        "s/GB",
        "io_uring",
        "bytes bounced",
        os.uname().release,
        file_system(tmp_path),
    ):
        assert part in text, part
    assert "ERRORS" not in text


def test_options_reach_the_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = (
        *("--rw=write", "--capacity=64MiB", "--durability=persistent", "--checksum=off"),
        *("--layout=extents", "--engine=io_uring", "--option=io_threads=2", "--align=1"),
    )
    with tuned(max_io_bytes=4096, queue_depth=8):
        result = bench_json(capsys, tmp_path, *SMALL, *arguments)
    store = result["store"]
    assert store["capacity_bytes"] == 64 * MIB
    assert store["syncs"] > 0
    assert store["transfers"] >= MIB // 4096
    assert store["bounced_bytes"] == MIB
    assert result["store_options"]["io_threads"] == "2"


def test_every_option_is_a_flag_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    for name in bench_options():
        assert f"--{name} " in text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("--rw=reed",), ["'reed'", "randread"]),
        (("--bs=3GiB",), ["'3GiB'", "2 GiB"]),
        (("--bs=big",), ["'big'", "a size"]),
        (("--iodepth=0",), ["'0'", "65536"]),
        (("--batch=64",), ["64", "32", "raise iodepth"]),
        (("--numjobs=1000",), ["'1000'", "128"]),
        (("--size=1",), ["size = 1 bytes", "raise size"]),
        (("--size=1EiB", "--bs=64MiB"), ["lower size"]),
        (("--size=8PiB", "--bs=64MiB", "--batch=1", "--iodepth=1"), ["bytes free", "lower --size"]),
        (("--runtime=-1",), ["'-1'", "86400"]),
        (("--rwmixread=101",), ["'101'", "100"]),
        (("--align=3",), ["'3'", "power of two"]),
        (("--verify=maybe",), ["'maybe'", "'on'"]),
        (("--seed=x",), ["'x'", "whole number"]),
        (("--iodepth=65536", "--bs=64MiB", "--size=8TiB"), ["memory", "lower one of them"]),
        (("--capacity=1MiB",), ["'1MiB'", "16 MiB"]),
        (("--capacity=16MiB", "--bs=32MiB"), ["33554432", "16777216", "raise capacity"]),
        (("--checksum=md5",), ["'md5'", "crc64nvme"]),
        (("--checksum=off", "--rw=randrw"), ["checksum = off", "use checksum = crc64nvme"]),
        (("--durability=always",), ["'always'", "best_effort"]),
        (("--option=io_threads=0",), ["'0'", "64"]),
        (("--option=io_thread=1",), ["'io_thread'", "io_threads"]),
        (("--option=io_threads",), ["'io_threads'", "NAME=VALUE"]),
        (("--option=path=/tmp",), ["--path"]),
        (("--option=checksum=off",), ["--checksum"]),
        (("--output=/nowhere/at/all",), ["'/nowhere/at/all'", "existing directory"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_named_with_a_way_out(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    shown: list[str],
) -> None:
    message = refusal(capsys, tmp_path, *arguments)
    assert message.startswith("kvring bench: ")
    for part in shown:
        assert part in message


def test_failed_sets_are_counted_and_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    load = ("--rw=write", "--bs=1MiB", "--size=64MiB", "--iodepth=16", "--batch=1")
    with tuned(set_queue_operations=4):
        result = bench_json(capsys, tmp_path, *load, status=1)
    failed = result["measured"]["classes"]["set"]["failed"]
    assert 0 < failed < 64
    assert result["errors"]["failed_keys"] == failed
    assert result["errors"]["failed_batches"] == {"queue_full": failed}
    (message,) = result["errors"]["messages"]
    assert "raise set_queue_bytes" in message
    assert result["has_errors"]
    with tuned(set_queue_operations=4):
        assert bench(tmp_path, *load) == 1
    text = capsys.readouterr().out
    told = re.search(r"(\d+) keys failed", text)
    assert told is not None
    assert 0 < int(told[1]) < 64
    assert f"{told[1]} batches queue_full" in text
    assert list(tmp_path.iterdir()) == []


def test_an_existing_store_is_not_touched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chunk = pattern(100_000, 1)
    with kvring.Connector(tmp_path, CAPACITY_BYTES) as connector:
        Client(connector).store({"mine": chunk})
        # While it is open as well.
        bench_json(capsys, tmp_path, *SMALL)

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.iterdir() if not path.is_socket()}

    before = contents()
    bench_json(capsys, tmp_path, *SMALL, "--rw=randwrite")
    assert contents() == before
    with kvring.Connector(tmp_path, CAPACITY_BYTES) as connector:
        assert Client(connector).load("mine", len(chunk)) == chunk


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("rw", ["randread", "write"])
def test_a_signal_ends_it_and_nothing_is_left(
    tmp_path: Path, number: signal.Signals, rw: str
) -> None:
    process = start_bench(tmp_path, f"--rw={rw}", *SMALL, "--runtime=3600", "--json")
    wait_for_data(tmp_path, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_DEADLINE_S)
    assert (process.returncode, err) == (128 + number, "")
    result = json.loads(out)
    assert result["interrupted"]
    assert not result["has_errors"]
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    terminal, other_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvring", "bench", "--path", str(tmp_path), *SMALL, "--runtime=5"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=other_end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(other_end)
    shown = b""
    # A terminal whose other end is closed gives an error rather than an end.
    with suppress(OSError):
        while part := os.read(terminal, 4096):
            shown += part
    os.close(terminal)
    assert process.wait(HANG_DEADLINE_S) == 0
    assert b"measuring" in shown
    assert b"MB/s" in shown


def test_python_m_kvring_tells_its_version() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "kvring", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"kvring {kvring.__version__}\n"


def test_a_run_can_be_followed_and_stopped(store_directory: Path) -> None:
    plan = BenchPlan(rw="randread", bs="4KiB", size=MIB, runtime=3600)
    run = BenchRun(plan, store_directory, plan.capacity_bytes)
    with pytest.raises(kvring.InUseError):
        BenchRun(plan, store_directory, plan.capacity_bytes)
    while run.poll()["phase"] != "measure":
        assert not run.wait(0.001)
    state = run.poll()
    assert 0 <= state["fraction"] < 1
    run.stop()
    assert run.wait(HANG_DEADLINE_S)
    assert run.poll()["phase"] == "end"
    report = run.report()
    assert report["interrupted"]
    with pytest.raises(kvring.KvRingError):
        run.report()
    kvring.Connector(store_directory, CAPACITY_BYTES).close()
