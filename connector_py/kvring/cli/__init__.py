"""The command `kvring`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from kvring import KvRingError, __version__
from kvring.cli.bench import bench
from kvring.cli.config import config
from kvring.cli.doctor import doctor
from kvring.cli.exporting import export_command
from kvring.cli.failure import Failure
from kvring.cli.filling import adopt, import_command
from kvring.cli.formatting import format_command
from kvring.cli.info import info, usage
from kvring.cli.listing import ls
from kvring.cli.output import OUTPUT_ERRORS, drop_output, open_closed_streams, printable
from kvring.cli.purge import purge
from kvring.cli.resizing import resize
from kvring.cli.selftest import selftest
from kvring.cli.sizing import size
from kvring.cli.status import status
from kvring.cli.top import stats, top
from kvring.cli.users import whose
from kvring.cli.verify import verify

__all__ = ["main"]

_INTERRUPTED = 130
_READER_GONE = 128 + signal.SIGPIPE
# Of these nobody misses what is not read. Others change something, or their status is an answer.
_ONLY_SHOW: Final = {"config", "info", "ls", "size", "stats", "top", "usage"}

_HELP = """
Configure, watch and maintain stores of kvring.

Start with these five commands:

\b
  kvring doctor /mnt/nvme --capacity 500GiB  check the machine and the drive
  kvring config /mnt/nvme/kvring 500GiB      print the JSON and what to start
  kvring selftest                            send a chunk through the server
  kvring status /mnt/nvme/kvring             show whether the store is healthy
  kvring top /mnt/nvme/kvring                show hits, rates and latencies
"""

_EPILOG = """
Exit status: 0 on success, 1 if something is broken or failed, 2 for wrong arguments, 4 if a part is
done, 128 + n after signal n.

Shell completion: eval "$(_KVRING_COMPLETE=bash_source kvring)", or zsh_source, fish_source.
"""


class _Commands(click.Group):
    """Commands of which some end well when whoever reads their output has enough."""

    def invoke(self, context: click.Context) -> Any:
        try:
            status = super().invoke(context)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            is_help = not {"-h", "--help"}.isdisjoint(context.obj)
            is_missed = not is_help and context.invoked_subcommand not in _ONLY_SHOW
            return _READER_GONE if is_missed else 0
        except PermissionError as error:
            if not isinstance(error.filename, str):
                raise
            raise Failure(whose(Path(error.filename))) from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=_HELP,
    epilog=_EPILOG,
)
@click.version_option(__version__, message="kvring %(version)s")
def kvring() -> None:
    """Run a command."""


for _command in (
    adopt,
    bench,
    config,
    doctor,
    export_command,
    format_command,
    import_command,
    info,
    ls,
    purge,
    resize,
    selftest,
    size,
    stats,
    status,
    top,
    usage,
    verify,
):
    kvring.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What follows the command's name; by default that of this process.

    Returns:
        The exit status: 0 if all went well, 1 for errors, 2 for wrong arguments, 128 and the
        number of the signal that ended it early.
    """
    # Before anything else opens a file, which would get the number of a closed one.
    if not open_closed_streams():
        click.echo(
            "kvring: standard output is closed: redirect it, to /dev/null if need be", err=True
        )
        return 1
    try:
        return _run(arguments)
    except BrokenPipeError:
        return _READER_GONE
    finally:
        drop_output()


def _run(arguments: Sequence[str] | None) -> int:
    try:
        # Those of the process are kept for messages that tell what to type.
        given = list(sys.argv[1:] if arguments is None else arguments)
        status = kvring.main(given, prog_name="kvring", standalone_mode=False, obj=tuple(given))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except SystemExit:
        # Click's own, where --help or --version has no reader any more.
        return 0
    except BrokenPipeError:
        raise
    except (KvRingError, OSError) as error:
        # What no command has better words for: a made-up archive.
        if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS:
            where = error.filename or "the output"
            click.echo(f"kvring: {where} cannot be written: {error.strerror}", err=True)
            return 1
        click.echo(f"kvring: {printable(str(error))}", err=True)
        return 1
    return int(status or 0)
