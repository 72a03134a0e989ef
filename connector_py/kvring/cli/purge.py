"""`kvring purge`: remove a namespace."""

import sys
from pathlib import Path

import click

from kvring._native import StoredChunks
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.opening import unchanged
from kvring.cli.output import print_json, size_text
from kvring.cli.owner import ask_owner
from kvring.cli.parameters import json_option
from kvring.cli.stores import index_path_option, said_well, store_paths

__all__ = ["purge"]

_EPILOG = """
Exit status: 0 if it is removed but for what is pinned, 1 if it is not, or there is no store; 2 for
wrong arguments.
"""


@click.command(epilog=_EPILOG, short_help="Remove all chunks of a model or tenant.")
@store_paths
@index_path_option
@click.option(
    "--namespace",
    metavar="NAME",
    required=True,
    help="Which: model, or model@salt. '' are the keys that are not of LMCache's form.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def purge(
    paths: tuple[Path, ...],
    index_path: Path | None,
    namespace: str,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove all chunks of a namespace from the store at PATH, but those that are pinned.

    If somebody has the store open its owner does it. Else all paths of the store are wanted.
    """
    try:
        namespace.encode()
    except UnicodeEncodeError:
        raise WrongArguments("--namespace is not UTF-8, and all keys are") from None
    keys, stored_bytes = _in_namespace(paths, index_path, namespace)
    click.echo(f"{namespace!r} has {keys:,} chunks, {size_text(stored_bytes)}", err=as_json)
    if not yes:
        if not sys.stdin.isatty():
            raise Failure("nobody can be asked whether they may go; say --yes if they may")
        click.confirm("All of them are lost. Go on?", abort=True)
    removed = ask_owner(paths[0], index_path, ask="purge", namespace=namespace)
    if removed is None:
        with unchanged(paths, index_path) as store:
            removed = store.purge(namespace)
    if as_json:
        print_json(removed)
    else:
        pinned = f"; {len(removed['pinned']):,} are pinned and stay" if removed["pinned"] else ""
        click.echo(f"removed {removed['keys']:,} chunks, {size_text(removed['bytes'])}{pinned}")
    return 0


def _in_namespace(
    paths: tuple[Path, ...], index_path: Path | None, namespace: str
) -> tuple[int, int]:
    lengths = []
    for path in paths:
        with said_well(path):
            lengths += [
                chunk["length_bytes"]
                for chunk in StoredChunks(path, index_path)
                if chunk["namespace"] == namespace
            ]
    return len(lengths), sum(lengths)
