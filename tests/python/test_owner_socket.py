"""The socket of an open store: who may ask, what is answered, and what is left of it."""

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvring
from kvring.cli import main
from kvring.owner_address import names
from kvring.owner_requests import ask
from tests.python.conftest import (
    HANG_DEADLINE_S,
    MIB,
    Client,
    bare_loop_device,
    child_command,
    make_key,
    pattern,
    run_child,
)

SOCKET = "owner-socket.kvring"
USER_ID = 54321

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_the_owner_answers_and_others_may_not_ask(client: Client, store_directory: Path) -> None:
    client.store({make_key(1): pattern(10_000, 1)})
    mode = (store_directory / SOCKET).lstat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    answer = ask(store_directory, None, {"ask": "stats"})
    assert answer["process_id"] == os.getpid()
    assert answer["stats"]["set_stored"] == 1
    assert answer["usage"]["test/model"]["keys"] == 1
    assert {"get", "set", "delete"} == {one["op"] for one in answer["latency"]}
    assert answer["recovery"]["kept"] == 0


def test_a_store_is_closed_while_the_thread_of_its_owner_begins(
    store_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    failures: list[object] = []

    class ClosedMeanwhile(dict[Any, Any]):
        def items(self) -> Any:
            found = list(super().items())
            closed.wait(HANG_DEADLINE_S)
            return found

    def start(thread: Any) -> None:
        if thread.name == "kvring-owner":
            owner = thread._target.__self__
            owner._listening = ClosedMeanwhile(owner._listening)
        start_thread(thread)

    start_thread = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threading, "excepthook", failures.append)
    kvring.Connector(store_directory, "64MiB").close()
    threads = [one for one in threading.enumerate() if one.name == "kvring-owner"]
    closed.set()
    for thread in threads:
        thread.join(HANG_DEADLINE_S)
        assert not thread.is_alive()
    assert failures == []


@pytest.mark.parametrize(
    ("request_line", "message"),
    [
        (b'{"ask": "unknown"}\n', "does not know the request 'unknown'"),
        (b"{}\n", "ask"),
        (b"no json\n", "Expecting value"),
        (b"\xff\xfe\n", "decode"),
        (b"[]\n", "indices"),
        (b'{"ask": "purge", "namespace": 5}\n', "'int' object"),
        (b"x" * 100_000 + b"\n", ""),
    ],
)
def test_what_cannot_be_answered_is_an_error_and_the_next_one_is(
    client: Client, store_directory: Path, request_line: bytes, message: str
) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANG_DEADLINE_S)
        connection.connect(str(store_directory / SOCKET))
        connection.sendall(request_line)
        answer = connection.makefile("rb").readline()
    assert message in json.loads(answer)["error"]
    assert ask(store_directory, None, {"ask": "stats"})["stats"]["keys"] == 0
    assert client.stat("keys") == 0


def test_nobody_waits_for_one_who_says_nothing(client: Client, store_directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(store_directory / SOCKET))
        silent.sendall(b"{")
        assert ask(store_directory, None, {"ask": "stats"})["stats"]["keys"] == client.stat("keys")


def test_nobody_answers_for_a_store_that_is_closed(
    open_client: Callable[..., Client], store_directory: Path
) -> None:
    client = open_client()
    client.connector.close()
    assert ask(store_directory, None, {"ask": "stats"}) is None
    with kvring.Connector(store_directory, "256MiB"):
        assert ask(store_directory, None, {"ask": "stats"}) is not None
    assert ask(store_directory, None, {"ask": "stats"}) is None
    connector = kvring.Connector(store_directory, "256MiB")
    assert ask(store_directory, None, {"ask": "stats"}) is not None
    del connector
    assert ask(store_directory, None, {"ask": "stats"}) is None


def test_an_owner_is_found_by_name_while_that_of_the_one_before_is_taken(
    store_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel has a name for a moment after its owner has closed it, and refuses who asks."""
    store_directory.mkdir()
    with socket.socket(socket.AF_UNIX) as closing:
        closing.bind(names(store_directory)[0])
        with kvring.Connector(store_directory, "64MiB"):
            (store_directory / SOCKET).unlink()
            assert ask(store_directory, None, {"ask": "stats"})["process_id"] == os.getpid()
    assert "cannot ask" not in caplog.text


@pytest.mark.parametrize("request_name", ["epoch", "resize", "reads"])
def test_a_name_is_no_right_to_the_store(
    client: Client, store_directory: Path, request_name: str
) -> None:
    """Who is in the network namespace sees the names, also from a container without the disk."""
    assert client.stat("keys") == 0
    (store_directory / SOCKET).unlink()
    request = {"ask": request_name, "name": "new", "capacities": []}
    with pytest.raises(kvring.KvRingError, match=f"answered at {SOCKET} in "):
        ask(store_directory, None, request)
    assert ask(store_directory, None, {"ask": "purge", "namespace": "none"})["keys"] == 0


def test_a_change_is_not_made_in_a_store_that_was_moved_away(
    open_client: Callable[..., Client], store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kvring.Connector(store_directory, "64MiB") as other:
        Client(other).store({make_key(1): b"other"})
    store_directory.rename(other_directory := store_directory.with_name("other"))
    client = open_client()
    client.store({make_key(2): b"moved"})
    store_directory.rename(store_directory.with_name("moved"))
    other_directory.rename(store_directory)
    assert main(["purge", str(store_directory), "--namespace=test/model", "--yes"]) == 0
    assert "removed 1 chunk, " in capsys.readouterr().out
    assert client.stat("keys") == 1
    with kvring.Connector(store_directory, "64MiB") as other:
        assert other.stats()["keys"] == 0


def test_a_name_that_does_not_answer_hides_no_owner(client: Client, store_directory: Path) -> None:
    """Anybody may take a name, and accept nobody: its queue is full then."""
    assert client.stat("keys") == 0
    blocked = []
    try:
        for name in names(store_directory) * 8:
            # Before and behind that of the owner, in whatever order the kernel lists them.
            blocked.append(listener := socket.socket(socket.AF_UNIX))
            listener.bind(f"{name[:-2]}{len(blocked):02}")
            listener.listen(0)
            blocked.append(waiting := socket.socket(socket.AF_UNIX))
            waiting.connect(listener.getsockname())
        for request in ({"ask": "stats"}, {"ask": "purge", "namespace": "none"}):
            assert ask(store_directory, None, request) is not None
    finally:
        for one in blocked:
            one.close()


def test_an_owner_without_a_thread_to_be_had_answers_later(
    client: Client, store_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.stat("keys") == 0
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(kvring.KvRingError, match="can't start new thread"):
            ask(store_directory, None, {"ask": "purge", "namespace": "none"})
    assert ask(store_directory, None, {"ask": "purge", "namespace": "none"})["keys"] == 0


def _no_thread(_: threading.Thread) -> None:
    message = "can't start new thread"
    raise RuntimeError(message)


@pytest.mark.parametrize("first", ["link", "target"])
def test_links_lead_to_the_owner(store_directory: Path, tmp_path: Path, first: str) -> None:
    store_directory.mkdir()
    link = tmp_path / "link"
    link.symlink_to(store_directory)
    opened, asked = (link, store_directory) if first == "link" else (store_directory, link)
    with kvring.Connector(opened, "64MiB"):
        (store_directory / SOCKET).unlink()
        assert ask(asked, None, {"ask": "stats"})["path"] == str(opened)


def hold(directory: str) -> None:
    """Have a store open until this process is killed."""
    connector = kvring.Connector(directory, "64MiB")
    print("ready", flush=True)
    sys.stdin.readline()
    del connector


def test_what_a_killed_owner_left_is_replaced(store_directory: Path) -> None:
    directory = store_directory
    with subprocess.Popen(
        child_command(hold, str(store_directory)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert main(["stats", str(directory)]) == 0
        process.send_signal(signal.SIGKILL)
    assert (directory / SOCKET).exists()
    assert ask(directory, None, {"ask": "stats"}) is None
    with kvring.Connector(directory, "64MiB"):
        answer = ask(directory, None, {"ask": "stats"})
        assert answer["process_id"] == os.getpid()


def test_a_path_longer_than_an_address(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30) / "store"
    with kvring.Connector(directory, "64MiB"):
        assert ask(directory, None, {"ask": "stats"})["process_id"] == os.getpid()


def test_a_device_has_one_too(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device:
        with kvring.Connector(device.path, "all"):
            assert ask(device.path, None, {"ask": "stats"})["process_id"] == os.getpid()
        assert ask(device.path, None, {"ask": "stats"}) is None


def ask_as_another_user(path: str) -> None:
    """Ask as a user who may read the device."""
    main(["stats", "--help"])
    os.setuid(USER_ID)
    try:
        print(ask(Path(path), None, {"ask": "stats"}))
    except PermissionError:
        print("refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
def test_other_users_are_refused(tmp_path: Path) -> None:
    with bare_loop_device(tmp_path, 64 * MIB) as device, kvring.Connector(device.path, "all"):
        # Who may read the device knows its id.
        mode = device.path.stat().st_mode
        device.path.chmod(0o666)
        try:
            ended = run_child(ask_as_another_user, str(device.path))
        finally:
            device.path.chmod(mode)
        assert ended.stdout.splitlines()[-1] == "refused", ended


def wait_without_descriptors(directory: str) -> None:
    """Have a store open and no descriptor left, and print how often somebody was to be accepted."""
    accepted: list[int] = []
    accept = socket.socket.accept

    def counted(one: socket.socket) -> Any:
        accepted.append(1)
        return accept(one)

    socket.socket.accept = counted  # type: ignore[assignment,method-assign]
    with kvring.Connector(directory, "64MiB"):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # None that is free is below it.
        with Path("/dev/null").open("rb") as lowest:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), hard))
        print("ready", flush=True)
        sys.stdin.readline()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(len(accepted), flush=True)
        sys.stdin.readline()


def test_an_owner_without_descriptors_does_not_turn_in_circles(
    store_directory: Path, start_child: Callable[..., "subprocess.Popen[str]"]
) -> None:
    owner = start_child(wait_without_descriptors, str(store_directory))
    assert owner.stdin is not None
    assert owner.stdout is not None
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(store_directory / SOCKET))
        time.sleep(0.5)
        owner.stdin.write("\n")
        owner.stdin.flush()
        # Thousands if nothing paused; fewer on a busy machine, but never few.
        assert int(owner.stdout.readline()) < 20
    assert ask(store_directory, None, {"ask": "stats"})["process_id"] == owner.pid
    owner.communicate("\n")


def test_an_open_goes_on_without_it(
    store_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no sockets here")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with kvring.Connector(store_directory, "64MiB") as connector:
        assert connector.stats()["keys"] == 0
        assert f"by {SOCKET}: no sockets here" in caplog.text
        assert main(["stats", str(store_directory)]) == 1


def test_top_shows_what_happens_between_two_looks(
    client: Client, store_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [make_key(number) for number in range(8)]
    client.store({key: pattern(MIB, 1) for key in keys})
    command = [sys.executable, "-m", "kvring", "top", str(store_directory)]
    with subprocess.Popen(
        [*command, "--json", "--interval=0.2"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        frames = [json.loads(process.stdout.readline())]
        client.exists([*keys, "none"])
        for key in keys:
            assert client.load(key, MIB) == pattern(MIB, 1)
        while not frames[-1]["loads_per_s"]:
            frames.append(json.loads(process.stdout.readline()))
        process.terminate()
        assert process.wait(HANG_DEADLINE_S) == -signal.SIGTERM
    assert frames[0]["read_bytes_per_s"] == 0
    assert frames[0]["latency_ms"]["get"]["total"] is None
    last = frames[-1]
    loaded = sum(one["read_bytes_per_s"] * one["over_s"] for one in frames)
    assert 0 < round(loaded) <= 8 * MIB
    assert 0 < last["latency_ms"]["get"]["total"]["p50"] < HANG_DEADLINE_S * 1000
    assert last["namespaces"][0]["name"] == "test/model"
    assert last["space"]["keys"] == 8
    assert [path["path"] for path in last["paths"]] == [str(store_directory)]
    assert main(["top", str(store_directory), "--count=1", "--interval=0.1"]) == 0
    assert "test/model" in capsys.readouterr().out
    client.connector.close()
    assert main(["top", str(store_directory)]) == 1
    assert "nobody has" in capsys.readouterr().err


def test_an_owner_that_is_killed_meanwhile_is_not_said_to_be_closing(
    client: Client, store_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.stat("keys") == 0
    monkeypatch.setattr("kvring.owner_requests._await_answer", lambda *_: b"")
    with pytest.raises(ConnectionError, match=r"has hung up: it was closed or killed; see kvring"):
        ask(store_directory, None, {"ask": "stats"})
