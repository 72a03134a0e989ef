"""Servers of others that a shared tier lives in, started on this machine."""

import importlib.util
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.adapter_spec import AdapterSpec
from tests.support.lmcache_command import DEADLINE_S, DeploymentError
from tests.support.machines import HERE, KILLED_WITH_PARENT, OWN_HOST, Machine, free_ports

if TYPE_CHECKING:
    from typing_extensions import Self

_BUCKET = "kvcache"
_DOMAIN = "s3.test"


class Redis:
    """A Redis or Valkey server in memory, on a free port; leaving the `with` block ends it."""

    def __init__(self, machine: Machine = HERE) -> None:
        """Find it.

        Raises:
            DeploymentError: There is none.
        """
        self._program = _program("redis-server", "valkey-server", package="redis-server")
        self._process: subprocess.Popen[bytes] | None = None
        self.host = machine.host
        (self.port,) = free_ports(1)

    def __enter__(self) -> "Self":
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.kill()

    @property
    def adapter(self) -> AdapterSpec:
        """LMCache's adapter for it."""
        return {"type": "resp", "host": self.host, "port": self.port}

    def start(self) -> None:
        """Start it, empty."""
        command = [self._program, "--bind", self.host, "--port", str(self.port)]
        # It would take no other machine, and the bridge has none.
        command += ["--protected-mode", "no", "--save", "", "--appendonly", "no"]
        # A replica copies through a file.
        command += ["--dir", tempfile.gettempdir(), "--dbfilename", f"kvring-{self.port}.rdb"]
        command += ["--rdb-del-sync-files", "yes"]
        self._process = _start(command, self.host, self.port)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Have it answer nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        self._signal(signal.SIGCONT)

    def ask(self, *words: str) -> list[str]:
        """Give a command, as redis-cli does; return the lines of the answer."""
        command = [self._program.replace("-server", "-cli")]
        command += ["-h", self.host, "-p", str(self.port), *words]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        return answer.stdout.splitlines()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


@contextmanager
def redis(machine: Machine) -> Iterator[AdapterSpec]:
    """Run a Redis or Valkey server; yield LMCache's adapter for it.

    Raises:
        DeploymentError: There is none.
    """
    with Redis(machine) as server:
        yield server.adapter


@contextmanager
def s3(directory: Path, machine: Machine) -> Iterator[AdapterSpec]:
    """Run an S3 server over a directory; yield LMCache's adapter for it.

    S3 names buckets in host names, which nobody has on this machine. A library has them found: it
    is set in the environment for all that is started from here.

    Raises:
        DeploymentError: There is none, or no such library.
    """
    program = _program("s3s-fs", package="cargo install s3s-fs@0.14.1 --features binary")
    wrapper = next(Path("/usr/lib").glob("*/libnss_wrapper.so"), None)
    if wrapper is None:
        raise DeploymentError("there is no libnss_wrapper.so (Debian: libnss-wrapper)")
    (port,) = free_ports(1)
    (directory / "objects" / _BUCKET).mkdir(parents=True)
    hosts = directory / "hosts"
    hosts.write_text(f"{machine.host} {_BUCKET}.{_DOMAIN}\n", encoding="ascii")
    command = [program, str(directory / "objects"), "--host", machine.host, "--port", str(port)]
    command += ["--domain", f"{_DOMAIN}:{port}", "--access-key", "key", "--secret-key", "secret"]
    process = _start(command, machine.host, port)
    try:
        adapter: AdapterSpec = {
            "type": "s3",
            "s3_endpoint": f"s3://{_BUCKET}.{_DOMAIN}:{port}",
            "s3_region": "us-east-1",
            "s3_num_io_threads": 4,
            "s3_prefer_http2": False,
            "disable_tls": True,
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
        }
        os.environ |= {"LD_PRELOAD": str(wrapper), "NSS_WRAPPER_HOSTS": str(hosts)}
        yield adapter
    finally:
        for name in ("LD_PRELOAD", "NSS_WRAPPER_HOSTS"):
            os.environ.pop(name, None)
        process.kill()
        process.wait()


@contextmanager
def mooncake(machine: Machine) -> Iterator[AdapterSpec]:
    """Run the master of a Mooncake store, whose memory is the nodes'; yield LMCache's adapter.

    Raises:
        DeploymentError: There is none, or LMCache has no module for it.
    """
    for module in ("mooncake", "lmcache.lmcache_mooncake"):
        if importlib.util.find_spec(module) is None:
            text = f"there is no {module}: docs/how-to/shared-tier.md#mooncakes-store"
            raise DeploymentError(text)
    package = importlib.util.find_spec("mooncake")
    assert package is not None
    assert package.origin is not None
    # Not the one in PATH: that is a script, whose child would live on.
    program = Path(package.origin).with_name("mooncake_master")
    port, metrics_port = free_ports(2)
    command = [str(program), f"-rpc_port={port}", f"-metrics_port={metrics_port}"]
    # It tells of itself every ten seconds.
    process = _start(command, machine.host, port, stderr=subprocess.DEVNULL)
    try:
        yield {
            "type": "mooncake_store",
            "local_hostname": OWN_HOST,
            "metadata_server": "P2PHANDSHAKE",
            "master_server_addr": f"{machine.host}:{port}",
            "protocol": "tcp",
            "local_buffer_size": str(64 << 20),
            "global_segment_size": str(1 << 30),
        }
    finally:
        process.kill()
        process.wait()


class Network:
    """A way to a server on this machine that is as slow as it is told to be."""

    def __init__(self, port: int) -> None:
        """Listen on a port of its own."""
        self.to_port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        # Of what the server sends; None for as fast as can be.
        self.bytes_per_s: float | None = None
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self.to_port))
                self._open += [client, server]
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while part := source.recv(64 << 10):
                if is_answer:
                    rate = self.bytes_per_s or math.inf
                    time.sleep(len(part) / rate)
                target.sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def _program(*names: str, package: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise DeploymentError(f"there is no {names[0]} ({package})")
    return found


def _start(
    command: list[str], host: str, port: int, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*KILLED_WITH_PARENT, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    deadline_s = time.monotonic() + DEADLINE_S
    while not _listens(host, port):
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            process.wait()
            raise DeploymentError(f"{command[0]} does not listen at {host}:{port}")
        time.sleep(0.02)
    return process


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return False
    return True
