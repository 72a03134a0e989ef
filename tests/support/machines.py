"""The machines that a demonstration runs on: network namespaces, or this machine alone."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Machine:
    """Where a program runs, and where it listens."""

    host: str = "127.0.0.1"
    # What a command begins with that is to run there.
    prefix: tuple[str, ...] = ()


HERE = Machine()

# Before a command: it is killed when the thread that starts it ends, as with a killed test run.
KILLED_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()

# In the specification of an adapter: the host of the node that gets it.
OWN_HOST = "{own host}"


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now, each another one."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [server.getsockname()[1] for server in sockets]
    finally:
        for server in sockets:
            server.close()


@contextmanager
def machines(*names: str) -> Iterator[tuple[Machine, dict[str, Machine]]]:
    """Yield a machine for what nodes share, and one for each node, by name.

    A node is a network namespace of its own, with nothing in common but a bridge, where this
    process may make that: as root, with `ip` of iproute2. Elsewhere all are this machine.
    """
    with ExitStack() as stack:
        # Two demonstrations at a time have other names, and hardly ever the same addresses. Those
        # are of RFC 2544: nobody else's.
        number = os.getpid()
        bridge, network = f"kvr{number}", f"198.{18 + number // 256 % 2}.{number % 256}"
        nodes = {
            name: Machine(f"{network}.{place}", ("ip", "netns", "exec", f"{bridge}-{name}"))
            for place, name in enumerate(names, 2)
        }
        try:
            _make_bridge(stack, bridge, f"{network}.1")
            for place, machine in enumerate(nodes.values()):
                _make_namespace(stack, machine, bridge, f"{bridge}v{place}")
        except (OSError, subprocess.CalledProcessError) as error:
            stack.close()
            text = getattr(error, "stderr", None) or str(error)
            print(f"all nodes are processes of this machine: {text.strip()}")
            yield HERE, dict.fromkeys(names, HERE)
        else:
            print("each node has a network namespace of its own")
            yield Machine(f"{network}.1"), nodes


def _make_bridge(stack: ExitStack, bridge: str, host: str) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise OSError("namespaces take root, and iproute2")
    _ip("link", "add", bridge, "type", "bridge")
    stack.callback(partial(_ip, "link", "del", bridge))
    _ip("address", "add", f"{host}/24", "dev", bridge)
    _ip("link", "set", bridge, "up")


def _make_namespace(stack: ExitStack, machine: Machine, bridge: str, link: str) -> None:
    namespace = machine.prefix[-1]
    _ip("netns", "add", namespace)
    stack.callback(partial(_ip, "netns", "del", namespace))
    _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _ip("link", "set", link, "master", bridge, "up")
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "address", "add", f"{machine.host}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
