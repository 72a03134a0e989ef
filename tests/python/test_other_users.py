"""Other users of the machine: what they can put in a store's place, and what they are not told."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvring
from kvring.cli import main
from kvring.owner_address import names
from tests.python.conftest import MIB, Client, bare_loop_device, make_key, pattern, run_child

Start = Callable[..., "subprocess.Popen[str]"]

SOCKET = "owner-socket.kvring"
NAMESPACE = "test/model@salt-of-a-tenant"
KEY = make_key(1, "salt-of-a-tenant")
# Nobody's.
USER_ID = 54321
# As a container may have it: this user's group has the directory.
SHARED_MODE = 0o1777

COMMANDS = [
    *(("ls",), ("usage",), ("info",), ("verify",), ("export",)),
    *(("stats",), ("top",), ("size",), ("purge", "--model=test/model", "--yes")),
    ("resize", "--capacity=64MiB"),
]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")


def listen(address: str) -> None:
    """Take an address as another user, and tell what the first who connects has sent."""
    os.setuid(USER_ID)
    os.umask(0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address.replace("@", "\0"))
        listening.listen()
        print("ready", flush=True)
        connection, _ = listening.accept()
        with connection:
            print(repr(connection.recv(1000)), flush=True)


def fill(path: Path) -> None:
    """Make a store with a chunk of a tenant, and close it."""
    with kvring.Connector(path, "all" if path.is_block_device() else "64MiB") as connector:
        Client(connector).store({KEY: pattern(MIB, 1)})


def assert_tells_nothing(
    path: Path, stranger: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["purge", str(path), "--namespace", NAMESPACE, "--yes"]) == 1
    said = capsys.readouterr().err
    assert f"process {stranger.pid} of user {USER_ID} listens for {path}" in said
    assert "nothing was sent" in said
    assert stranger.communicate("")[0] == "b''\n"


@needs_root
def test_who_takes_the_address_of_an_owner_is_told_nothing(
    public_directory: Path, start_child: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    store = public_directory / "store"
    fill(store)
    (store / SOCKET).unlink()
    store.chmod(SHARED_MODE)
    stranger = start_child(listen, str(store / SOCKET))
    assert_tells_nothing(store, stranger, capsys)


@needs_root
def test_who_takes_the_address_of_a_device_is_told_nothing(
    tmp_path: Path, start_child: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    with bare_loop_device(tmp_path, 128 * MIB) as device:
        fill(device.path)
        (name,) = names(device.path)
        stranger = start_child(listen, name.replace("\0", "@"))
        assert_tells_nothing(device.path, stranger, capsys)


@pytest.mark.parametrize("kind", ["link", "fifo", "file", "directory"])
def test_what_stands_in_the_place_of_the_socket(
    store_directory: Path,
    tmp_path: Path,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another program's socket behind a link is not asked, and no FIFO waited for."""
    fill(store_directory)
    place, other = store_directory / SOCKET, tmp_path / "other-socket"
    place.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(other))
        listening.listen()
        listening.setblocking(False)
        make: dict[str, Callable[[], object]] = {
            "link": lambda: place.symlink_to(other),
            "fifo": lambda: os.mkfifo(place),
            "file": lambda: place.write_text("a letter to a friend"),
            "directory": place.mkdir,
        }
        make[kind]()
        with kvring.Connector(store_directory, "64MiB") as connector:
            assert f"{SOCKET} is there and is no socket; move it away" in caplog.text
            assert Client(connector).load(KEY, MIB) == pattern(MIB, 1)
            # It is asked under its name.
            assert main(["stats", str(store_directory)]) == 0
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert kind != "file" or place.read_text() == "a letter to a friend"


def reach(act: Callable[[], object]) -> bool:
    """Tell whether something of a store can be had; it must be the permissions if not."""
    try:
        act()
    except PermissionError:
        return False
    return True


def try_everything(path: str, *names: str) -> None:
    """As another user, look for a way to the chunks of a store; print what was found."""
    # Imported before that user may not read the packages.
    main(["ls", "--help"])
    os.setuid(USER_ID)
    store = Path(path)
    reached = [
        name
        for name in names
        if reach((store / name).lstat) or reach((store / name).open) or reach((store / name).unlink)
    ]
    for arguments in COMMANDS:
        print(main([arguments[0], path, *arguments[1:]]), *arguments, file=sys.stderr)
    print("\n", reached, reach(lambda: list(store.iterdir())))


@needs_root
@pytest.mark.parametrize("layout", ["extents", "files"])
def test_another_user_gets_nowhere(public_directory: Path, layout: str) -> None:
    store, before = public_directory / "store", os.umask(0)
    try:
        with kvring.Connector(store, "64MiB", layout=layout) as connector:
            Client(connector).store({KEY: pattern(MIB, 1)})
            found = [*store.rglob("*")]
            for one in [store, *found]:
                wanted = 0o700 if one.is_dir() else 0o600
                assert stat.S_IMODE(one.lstat().st_mode) == wanted, one
            names = [str(one.relative_to(store)) for one in found]
            assert SOCKET in names
            ended = run_child(try_everything, str(store), *names)
            assert ended.returncode == 0, ended.stderr
            assert ended.stdout.splitlines()[-1] == " [] False", ended
            said = ended.stderr.splitlines()
            for line, answer, arguments in zip(said[::2], said[1::2], COMMANDS, strict=True):
                assert answer == " ".join(("1", *arguments))
                command = " ".join(("kvring", arguments[0], str(store), *arguments[1:]))
                assert line.endswith(f": sudo -u root {command}"), line
            assert "salt-of-a-tenant" not in ended.stdout + ended.stderr
            assert Client(connector).load(KEY, MIB) == pattern(MIB, 1)
    finally:
        os.umask(before)
