"""Two nodes with kvring each, that read each other's memory: LMCache's peer-to-peer transfer.

    python -m examples.peers DIRECTORY

It starts LMCache's coordinator and two LMCache servers on this machine, has one store and the
other load from it, and checks that each byte is right. It takes LMCache (make lmcache) and a
library for the transfer: pip install mooncake-transfer-engine-non-cuda, or nixl. Neither needs
RDMA or a GPU.
"""

from examples.peers.nodes import show
from examples.run import run

if __name__ == "__main__":
    run(show, __doc__)
