"""Two LMCache servers with a kvring store each, that read each other's memory: peers."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.adapter_spec import AdapterSpec, adapter_spec
from tests.support.deployment import (
    FIRST_CLIENT_BLOCKS,
    LATER_CLIENT_BLOCKS,
    CacheServer,
    fresh_run_problems,
    restart_problems,
)
from tests.support.lmcache_command import (
    DEADLINE_S,
    DeploymentError,
    lmcache_command,
    lmcache_environment,
)
from tests.support.machines import Machine, free_ports, machines
from tests.support.two_nodes import CHUNKS, REQUESTS, check

# LMCache's own are 5 s, 30 s and 10 s: it would take a minute until a dead peer is asked no more.
_HEARTBEAT_S = 0.5
_INSTANCE_TIMEOUT_S = 10.0
_HEALTH_CHECK_S = 0.5


def transfer_engine() -> str:
    """Return the name of a library that LMCache can read another server's memory with.

    Raises:
        DeploymentError: There is none that can be imported.
    """
    # Not here: one of them may end a process badly that has only imported it.
    engines = {"mooncake.engine": "mooncake_te", "nixl._api": "nixl"}
    for module, engine in engines.items():
        command = [sys.executable, "-c", f"import {module}"]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return engine
    raise DeploymentError(
        "there is no transfer engine: pip install mooncake-transfer-engine-non-cuda, which needs "
        "libibverbs1 and ibverbs-providers of Debian"
    )


class PeerServer(CacheServer):
    """A server over a store of its own, that lets its peers read its memory."""

    def __init__(
        self, name: str, directory: Path, machine: Machine, coordinator_url: str, engine: str
    ) -> None:
        """Prepare it."""
        self.name = name
        spec: AdapterSpec = adapter_spec("plugin", directory / name)
        super().__init__(spec, directory / f"{name}.log", machine=machine)
        self._peer_arguments = [
            *("--instance-id", name, "--coordinator-url", coordinator_url),
            *("--coordinator-advertise-ip", machine.host),
            *("--coordinator-heartbeat-interval", str(_HEARTBEAT_S)),
            *("--p2p-transfer-engine", engine),
            # Peers see what is in memory only: what comes from the disk has to stay there.
            *("--l2-prefetch-policy", "retain"),
        ]

    def peers(self) -> list[str]:
        """Return the names of the peers it asks."""
        found = re.search(r'"p2p_peers":\s*(\[[^\]]*\])', self.fetch("/status"))
        names: list[str] = json.loads(found[1]) if found else []
        return names

    def wait_for_peers(self, *names: str) -> None:
        """Wait until it asks these peers and no other."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.peers() != list(names):
            if time.monotonic() > deadline_s:
                raise self._error(f"node {self.name} asks {self.peers()} and not {names}")
            time.sleep(0.1)

    def loads(self) -> int:
        """Return how many chunks were loaded from its own disk."""
        return self.metric("kvring_loads_total")

    def stores(self) -> int:
        """Return how many chunks were stored on its own disk."""
        return self.metric("kvring_stores_total")

    def peer_requests(self) -> int:
        """Return for how many requests chunks were loaded from a peer."""
        pattern = r'^lmcache_mp_l2_load_completed_requests_total{.*l2_name="p2p".*} (\S+)$'
        return round(sum(map(float, re.findall(pattern, self.metrics(), re.MULTILINE))))

    def _arguments(self) -> list[str]:
        (port,) = free_ports(1)
        url = f"{self._machine.host}:{port}"
        return [*super()._arguments(), *self._peer_arguments, "--p2p-advertise-url", url]


@contextmanager
def coordinator(log_path: Path, machine: Machine) -> Iterator[str]:
    """Run LMCache's coordinator, which tells servers of each other; yield its address."""
    (port,) = free_ports(1)
    command = lmcache_command(
        *("coordinator", "--host", machine.host, "--port", str(port)),
        *("--instance-timeout", str(_INSTANCE_TIMEOUT_S)),
        *("--health-check-interval", str(_HEALTH_CHECK_S)),
    )
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=lmcache_environment(),
        )
    try:
        # The servers try again until it answers.
        yield f"http://{machine.host}:{port}"
    finally:
        process.kill()
        process.wait()


def show(directory: Path) -> None:
    """Have node A store, and node B load all of it from A: from its memory, and from its disk.

    Args:
        directory: Where both have their stores; each begins empty.

    Raises:
        DeploymentError: Something is not as it must be.
    """
    engine = transfer_engine()
    with ExitStack() as stack:
        common, machine_of = stack.enter_context(machines("a", "b"))
        url = stack.enter_context(coordinator(directory / "coordinator.log", common))
        first, second = (
            PeerServer(name, directory, machine, url, engine)
            for name, machine in machine_of.items()
        )
        for node in (first, second):
            stack.enter_context(node)
        first.wait_for_peers("b")
        second.wait_for_peers("a")
        print(f"nodes a and b are peers, by {engine}")

        stored = first.run_client(REQUESTS, FIRST_CLIENT_BLOCKS)
        check(fresh_run_problems(stored, REQUESTS))
        # LMCache's own count of stored chunks has those too that a peer did not take.
        first.wait_for_metric("kvring_stores_total", CHUNKS)
        print(f"node a stored {CHUNKS} chunks on its disk")

        check(restart_problems(stored, second.run_client(REQUESTS, LATER_CLIENT_BLOCKS)))
        _expect("requests that b loaded from a", second.peer_requests(), REQUESTS)
        print(f"node b, empty, loaded {CHUNKS} from the memory of node a, equal")
        # LMCache does not hand to a store what it has loaded.
        _expect("chunks that b stored", second.stores(), 0)
        print("node b stored none of them on its disk")

        first.clear_l1()
        second.clear_l1()
        check(restart_problems(stored, first.run_client(REQUESTS, LATER_CLIENT_BLOCKS)))
        _expect("chunks that a loaded from its disk", first.loads(), CHUNKS)
        print(f"node a, with its memory cleared, loaded {CHUNKS} from its disk, equal")
        check(restart_problems(stored, second.run_client(REQUESTS, LATER_CLIENT_BLOCKS + 128)))
        _expect("requests that b loaded from a", second.peer_requests(), 2 * REQUESTS)
        print(f"node b loaded {CHUNKS} from the memory of node a again, equal")

        first.kill()
        second.wait_for_peers()
        print("node b no longer asks node a, which was killed")
        second.clear_l1()
        own = second.run_client(REQUESTS, FIRST_CLIENT_BLOCKS)
        check(fresh_run_problems(own, REQUESTS))
        second.wait_for_metric("kvring_stores_total", CHUNKS)
        second.clear_l1()
        check(restart_problems(own, second.run_client(REQUESTS, LATER_CLIENT_BLOCKS)))
        _expect("chunks that b loaded from its disk", second.loads(), CHUNKS)
        print(f"node b computed {CHUNKS} itself, stored them, and loaded them from its disk, equal")
        second.stop()


def _expect(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise DeploymentError(f"{what}: {found}, not {expected}")
