"""Two nodes with kvring each, in front of one bucket of an S3 server that both share.

    python -m examples.shared_s3 DIRECTORY

It starts an S3 server and two LMCache servers on this machine, has one store and the other load,
and checks that each byte is right. It takes LMCache (make lmcache), s3s-fs and libnss-wrapper.
"""

from functools import partial
from pathlib import Path

from examples.run import run
from tests.support.servers import s3
from tests.support.two_nodes import show


def main(directory: Path) -> None:
    """Run it in a new directory."""
    show(directory, partial(s3, directory))


if __name__ == "__main__":
    run(main, __doc__)
