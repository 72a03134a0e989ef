"""Two nodes with kvring each, in front of one Redis (or Valkey) that both share.

    python -m examples.shared_redis DIRECTORY

It starts a Redis and two LMCache servers on this machine, has one store and the other load, and
checks that each byte is right. It takes LMCache (make lmcache) and redis-server.
"""

import sys
from pathlib import Path

from demo.servers import Redis
from demo.two_nodes import show


def main(directory: Path) -> None:
    """Run it in a new directory."""
    directory.mkdir(parents=True)
    with Redis() as server:
        show(directory, server.adapter)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
