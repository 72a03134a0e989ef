"""Two LMCache servers with a kvring store each, in front of a tier that both share."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from tests.support.adapter_spec import AdapterSpec
from tests.support.bench_client import CHUNKS_PER_REQUEST, ClientRun
from tests.support.deployment import (
    FIRST_CLIENT_BLOCKS,
    LATER_CLIENT_BLOCKS,
    CacheServer,
    fresh_run_problems,
    restart_problems,
)
from tests.support.lmcache_command import DEADLINE_S, DeploymentError
from tests.support.machines import HERE, OWN_HOST, Machine, machines

REQUESTS = 4
CHUNKS = REQUESTS * CHUNKS_PER_REQUEST


def shared_spec(
    path: Path, shared_tier: AdapterSpec, capacity: str = "4GiB", **options: object
) -> AdapterSpec:
    """Return the specification of a store at a path in front of another adapter of LMCache."""
    return {
        "type": "plugin",
        "module_path": "kvring.lmcache",
        "class_name": "KvringSharedL2Adapter",
        "adapter_params": {
            "path": str(path),
            "capacity": capacity,
            "shared_tier": shared_tier,
            **options,
        },
    }


class Node:
    """A node: an LMCache server over a store of its own."""

    def __init__(
        self, name: str, directory: Path, shared_tier: AdapterSpec, machine: Machine = HERE
    ) -> None:
        """Prepare it."""
        self.name = name
        own = {
            option: machine.host if value == OWN_HOST else value
            for option, value in shared_tier.items()
        }
        spec = shared_spec(directory / name, own)
        self.server = CacheServer(spec, directory / f"{name}.log", machine=machine)

    def store(self) -> dict[str, Any]:
        """Return what the server says of its store."""
        adapters = stores_in(json.loads(self.server.fetch("/status")))
        if len(adapters) != 1:
            raise DeploymentError(f"node {self.name} has {len(adapters)} stores")
        return adapters[0]

    def wait_for(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until something holds of its shared tier; return what is said of that."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            tier: dict[str, Any] = self.store()["shared_tier"]
            if holds(tier):
                return tier
            if time.monotonic() > deadline_s:
                raise DeploymentError(f"node {self.name}: {what} does not come: {tier}")
            time.sleep(0.05)

    def loads(self) -> int:
        """Return how many chunks were loaded from its own disk."""
        return self.server.metric("kvring_loads_total")


def show(directory: Path, serve: Callable[[Machine], AbstractContextManager[AdapterSpec]]) -> None:
    """Have node A store, and node B find all of it: in the shared tier, then on its own disk.

    Args:
        directory: Where both have their stores; each begins empty.
        serve: Runs what they share on a machine, and yields LMCache's adapter for it.

    Raises:
        DeploymentError: Something is not as it must be.
    """
    with ExitStack() as stack:
        common, machine_of = stack.enter_context(machines("a", "b"))
        shared_tier = stack.enter_context(serve(common))
        nodes = [
            Node(name, directory, shared_tier, machine) for name, machine in machine_of.items()
        ]
        for node in nodes:
            stack.enter_context(node.server)
            node.wait_for("the shared tier", lambda tier: tier["is_answering"])
        first, second = nodes
        stored = first.server.run_client(REQUESTS, FIRST_CLIENT_BLOCKS)
        check(fresh_run_problems(stored, REQUESTS))
        first.wait_for("what it shares", lambda tier: tier["stores"] >= CHUNKS)
        print(f"node a stored {CHUNKS} chunks, and shared them")
        check(restart_problems(stored, second.server.run_client(REQUESTS, LATER_CLIENT_BLOCKS)))
        tier = second.wait_for("what it keeps", lambda tier: tier["promoted"] >= CHUNKS)
        print(f"node b, empty, found {tier['found']} in the shared tier, equal, and kept them")
        before = second.loads()
        first.server.kill()
        again = _from_disk(second)
        check(restart_problems(stored, again))
        loads = second.loads() - before
        after = second.store()["shared_tier"]
        if loads < CHUNKS or after["found"] != tier["found"]:
            raise DeploymentError(f"{loads} chunks came from its own disk: {after}")
        print(f"node b found {loads} on its own disk, equal, with node a killed")
        second.server.stop()


def _from_disk(node: Node) -> ClientRun:
    node.server.clear_l1()
    return node.server.run_client(REQUESTS, LATER_CLIENT_BLOCKS + 128)


def check(problems: list[str]) -> None:
    """Raise what is wrong, if anything is."""
    if problems:
        raise DeploymentError("\n".join(problems))


def stores_in(tree: object) -> list[dict[str, Any]]:
    """Return what a status of LMCache says of its kvring stores."""
    own = [tree] if isinstance(tree, dict) and tree.get("type") == "kvring" else []
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return own + [found for child in children for found in stores_in(child)]
