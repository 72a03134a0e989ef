"""Two nodes with kvring each, in front of one Redis (or Valkey) that both share.

    python -m examples.shared_redis DIRECTORY

It starts a Redis and two LMCache servers on this machine, has one store and the other load, and
checks that each byte is right. It takes LMCache (make lmcache) and redis-server.
"""

from pathlib import Path

from examples.run import run
from tests.support.servers import redis
from tests.support.two_nodes import show


def main(directory: Path) -> None:
    """Run it in a new directory."""
    show(directory, redis)


if __name__ == "__main__":
    run(main, __doc__)
