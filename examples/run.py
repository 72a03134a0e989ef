"""How an example is started: with the directory that it works in."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.lmcache_command import DeploymentError


def run(main: Callable[[Path], None], text: str) -> None:
    """Run an example in a new directory, and exit with what went wrong.

    Args:
        main: The example.
        text: What it does.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="is made, and must not be there yet")
    directory: Path = parser.parse_args().directory
    try:
        directory.mkdir(parents=True)
        main(directory)
    except (DeploymentError, OSError) as error:
        sys.exit(str(error))
