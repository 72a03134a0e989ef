"""Two LMCache servers with a kvring store each, in front of a tier that both share."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.support.adapter_spec import AdapterSpec
from tests.support.bench_client import ClientRun
from tests.support.deployment import (
    FIRST_CLIENT_BLOCKS,
    LATER_CLIENT_BLOCKS,
    fresh_run_problems,
    restart_problems,
)
from tests.support.lmcache_command import DeploymentError
from tests.support.machines import Machine, machines
from tests.support.two_nodes import CHUNKS, REQUESTS, Node, check

# Runs what the nodes share on a machine, and yields LMCache's adapter for it.
Serve = Callable[[Machine], AbstractContextManager[AdapterSpec]]


def show(directory: Path, serve: Serve) -> None:
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
        print("node b, empty, found all of them in the shared tier, equal, and kept them")
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
