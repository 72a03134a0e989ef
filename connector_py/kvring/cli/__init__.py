"""The command `kvring`."""

import argparse
from collections.abc import Sequence

from kvring import __version__
from kvring.cli import bench, formatting, listing

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What follows the command's name; by default that of this process.

    Returns:
        The exit status: 0 if all went well, 1 for errors, 2 for wrong arguments, 128 and the
        number of the signal that ended it early.
    """
    parser = argparse.ArgumentParser(
        prog="kvring", description="A local-NVMe tier for LMCache.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"kvring {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    bench.add_parser(commands)
    formatting.add_parser(commands)
    listing.add_parser(commands)
    parsed = parser.parse_args(arguments)
    try:
        status = parsed.run(parsed)
    except KeyboardInterrupt:
        return _INTERRUPTED
    assert isinstance(status, int)
    return status
