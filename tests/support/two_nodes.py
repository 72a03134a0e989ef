"""Two LMCache servers with a kvring store each, in front of a tier that both share."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.adapter_spec import AdapterSpec
from tests.support.bench_client import CHUNKS_PER_REQUEST
from tests.support.deployment import CacheServer
from tests.support.lmcache_command import DEADLINE_S, DeploymentError
from tests.support.machines import HERE, OWN_HOST, Machine

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


def check(problems: list[str]) -> None:
    """Raise what is wrong, if anything is."""
    if problems:
        raise DeploymentError("\n".join(problems))


def stores_in(tree: object) -> list[dict[str, Any]]:
    """Return what a status of LMCache says of its kvring stores."""
    own = [tree] if isinstance(tree, dict) and tree.get("type") == "kvring" else []
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return own + [found for child in children for found in stores_in(child)]
