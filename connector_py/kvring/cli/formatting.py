"""`kvring format`: make a block device blank, so that the next open makes a store there."""

import argparse
import sys
from typing import Any

from kvring import KvRingError
from kvring._native import format_device

_DESCRIPTION = """
Erases what a block device holds: its first and last MiB, and all of it where it can be discarded.
The next open makes a store there. A blank device needs no such command. What is found on the device
is told first. A device that is in use, or that holds a store, is refused and left as it is.
"""

_EPILOG = "Exit status: 0 if the device is blank now, 1 if it is as it was, 2 for wrong arguments."


def add_parser(commands: Any) -> None:
    """Add the command to what `ArgumentParser.add_subparsers` returned."""
    parser = commands.add_parser(
        "format",
        help="erase what a block device holds, for a store",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("device", metavar="DEVICE", help="the block device")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--no-discard",
        dest="discard",
        action="store_false",
        help="do not tell the device that nothing on it is needed any more",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    device: str = arguments.device

    def agree(found: str) -> bool:
        print(f"{device} holds {found}")
        if arguments.yes:
            return True
        if not sys.stdin.isatty():
            return _fail("nobody can be asked whether that may go; say --yes if it may") == 0
        # What happens to it cannot be undone: a key pressed too early is no answer.
        return input("All of it is lost. Type 'yes' to go on: ").strip() == "yes"

    try:
        if not format_device(device, arguments.discard, agree):
            print(f"{device} is as it was", file=sys.stderr)
            return 1
    except (KvRingError, OSError) as error:
        return _fail((isinstance(error, OSError) and error.strerror) or str(error))
    except EOFError:
        return _fail("no answer; nothing was written")
    print(f"{device} is blank: the next open makes a store there")
    return 0


def _fail(message: str) -> int:
    print(f"kvring format: {message}", file=sys.stderr)
    return 1
