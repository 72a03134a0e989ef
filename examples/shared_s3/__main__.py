"""Two nodes with kvring each, in front of one bucket of an S3 server that both share.

    python -m examples.shared_s3 DIRECTORY

It starts an S3 server and two LMCache servers on this machine, has one store and the other load,
and checks that each byte is right. It takes LMCache (make lmcache), s3s-fs and libnss-wrapper.
"""

import os
from pathlib import Path

from demo.example import run
from demo.servers import s3
from demo.two_nodes import show


def main(directory: Path) -> None:
    """Run it in a new directory."""
    with s3(directory) as (shared_tier, environment):
        # Of the LMCache servers, which are started from here.
        os.environ.update(environment)
        show(directory, shared_tier)


if __name__ == "__main__":
    run(main, __doc__)
