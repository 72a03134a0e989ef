"""Two nodes with kvring each, in front of one Mooncake store that both share.

    python -m examples.shared_mooncake DIRECTORY

It starts Mooncake's master and two LMCache servers on this machine, has one store and the other
load, and checks that each byte is right. It takes LMCache (make lmcache) with its module for
Mooncake, which is built by hand, and mooncake-transfer-engine-non-cuda (docs/scale-out.md).
"""

from pathlib import Path

from examples.run import run
from tests.support.servers import mooncake
from tests.support.two_nodes import show


def main(directory: Path) -> None:
    """Run it in a new directory."""
    show(directory, mooncake)


if __name__ == "__main__":
    run(main, __doc__)
