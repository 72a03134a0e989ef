"""Two nodes with kvring each, which share a tier or read each other's memory.

    python -m examples.two_nodes redis|s3|mooncake|peers DIRECTORY

It starts what the nodes share and two LMCache servers on this machine, has one store and the other
load, and checks that each byte is right. It takes LMCache (make lmcache), and for

    redis     redis-server, or Valkey's
    s3        s3s-fs (cargo install s3s-fs@0.14.1 --features binary) and libnss-wrapper
    mooncake  LMCache's module for Mooncake, built by hand, and mooncake-transfer-engine-non-cuda
    peers     mooncake-transfer-engine-non-cuda or nixl; neither needs RDMA or a GPU
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from examples.two_nodes import peers, shared_tier
from tests.support.lmcache_command import DeploymentError
from tests.support.servers import mooncake, redis, s3


def main() -> None:
    """Run it in a new directory, and exit with what went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("redis", "s3", "mooncake", "peers"))
    parser.add_argument("directory", type=Path, help="is made, and must not be there yet")
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    servers: dict[str, shared_tier.Serve] = {
        "redis": redis,
        "s3": partial(s3, directory),
        "mooncake": mooncake,
    }
    try:
        directory.mkdir(parents=True)
        if arguments.kind == "peers":
            peers.show(directory)
        else:
            shared_tier.show(directory, servers[arguments.kind])
    except (DeploymentError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
