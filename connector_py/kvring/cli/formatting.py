"""`kvring format`: make a block device blank, so that the next open makes a store there."""

import sys
from pathlib import Path

import click

from kvring import KvRingError
from kvring._native import format_device
from kvring.cli.consent import consent_options
from kvring.cli.failure import Failure
from kvring.cli.users import whose

__all__ = ["format_command"]


@click.command("format", short_help="Erase a block device for a store.")
@click.argument("device")
@consent_options
@click.option(
    "--no-discard",
    "discard",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Do not discard the device.",
)
def format_command(device: str, yes: bool, dry_run: bool, discard: bool) -> int:
    """Erase the block device DEVICE, so that the next open makes a store there.

    It erases the first and last MiB, and discards the device if it can. It refuses a device in use
    or with a store.
    """

    def agree(found: str) -> bool:
        click.echo(f"{device} holds {found}")
        if dry_run:
            return False
        if yes:
            return True
        if not sys.stdin.isatty():
            raise Failure("no terminal to confirm the loss: nothing was changed; use --yes")
        # What happens to it cannot be undone: a key pressed too early is no answer.
        return input("All of it is lost. Type 'yes' to go on: ").strip() == "yes"

    try:
        if not format_device(device, discard, agree):
            click.echo(f"{device} is as it was", err=True)
            return 0 if dry_run else 1
    except PermissionError:
        raise Failure(whose(Path(device))) from None
    except (KvRingError, OSError) as error:
        raise Failure((isinstance(error, OSError) and error.strerror) or str(error)) from error
    except EOFError:
        raise Failure("no answer; nothing was written") from None
    click.echo(f"{device} is blank: the next open makes a store there")
    return 0
