"""Servers of others that a shared tier lives in, started on this machine."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from demo.adapter_spec import AdapterSpec
from demo.lmcache_command import DEADLINE_S, DeploymentError

if TYPE_CHECKING:
    from typing_extensions import Self

_BUCKET = "kvcache"
_DOMAIN = "s3.test"


class Redis:
    """A Redis or Valkey server in memory, on a free port; leaving the `with` block ends it."""

    def __init__(self) -> None:
        """Find it.

        Raises:
            DeploymentError: There is none.
        """
        self._program = _program("redis-server", "valkey-server", package="redis-server")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def __enter__(self) -> "Self":
        """Start it."""
        self.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        self.kill()

    @property
    def adapter(self) -> AdapterSpec:
        """LMCache's adapter for it."""
        return {"type": "resp", "host": "127.0.0.1", "port": self.port}

    def start(self) -> None:
        """Start it, empty."""
        command = [self._program, "--bind", "127.0.0.1", "--port", str(self.port)]
        self._process = _start([*command, "--save", "", "--appendonly", "no"], self.port)

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
        command = [self._program.replace("-server", "-cli"), "-p", str(self.port), *words]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        return answer.stdout.splitlines()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


@contextmanager
def s3(directory: Path) -> Iterator[tuple[AdapterSpec, dict[str, str]]]:
    """Run an S3 server over a directory; yield LMCache's adapter, and what is set for who asks it.

    S3 names buckets in host names, which nobody has on this machine: a library has them found.

    Raises:
        DeploymentError: There is none, or no such library.
    """
    program = _program("s3s-fs", package="cargo install s3s-fs@0.14.1 --features binary")
    wrapper = next(Path("/usr/lib").glob("*/libnss_wrapper.so"), None)
    if wrapper is None:
        raise DeploymentError("there is no libnss_wrapper.so (Debian: libnss-wrapper)")
    port = free_port()
    (directory / "objects" / _BUCKET).mkdir(parents=True)
    hosts = directory / "hosts"
    hosts.write_text(f"127.0.0.1 {_BUCKET}.{_DOMAIN}\n", encoding="ascii")
    command = [program, str(directory / "objects"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--domain", f"{_DOMAIN}:{port}", "--access-key", "key", "--secret-key", "secret"]
    process = _start(command, port)
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
        yield adapter, {"LD_PRELOAD": str(wrapper), "NSS_WRAPPER_HOSTS": str(hosts)}
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _program(*names: str, package: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise DeploymentError(f"there is no {names[0]} ({package})")
    return found


def _start(command: list[str], port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + DEADLINE_S
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            process.wait()
            raise DeploymentError(f"{command[0]} does not listen on port {port}")
        time.sleep(0.02)
    return process


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
