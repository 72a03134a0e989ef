"""`kvring purge`: remove a namespace."""

from pathlib import Path

import click

from kvring.cli.consent import Losses, consent_options, has_consent
from kvring.cli.failure import PartialSuccess, WrongArguments
from kvring.cli.opening import facts_of_all, unchanged
from kvring.cli.output import print_json, size_text
from kvring.cli.owner import ask_owner
from kvring.cli.parameters import json_option
from kvring.cli.stores import index_path_option, need_namespace, store_paths

__all__ = ["purge"]

_EPILOG = """
Exit status: 0 if it is removed, 1 if it is not, or there is no such store or namespace; 2 for wrong
arguments; 4 if some chunks are pinned and stay.
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
@consent_options
@json_option
def purge(
    paths: tuple[Path, ...],
    index_path: Path | None,
    namespace: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove all chunks of a namespace from the store at PATH, but those that are pinned.

    If somebody has the store open its owner does it. All paths of the store are to be named.
    """
    try:
        namespace.encode()
    except UnicodeEncodeError:
        raise WrongArguments("--namespace is not UTF-8, and all keys are") from None
    facts_of_all(paths, index_path)
    keys, stored_bytes = need_namespace(paths, index_path, namespace)
    click.echo(f"{namespace!r} has {keys:,} chunks, {size_text(stored_bytes)}", err=as_json)
    losses = Losses(keys, stored_bytes, [])
    if not has_consent(losses, yes=yes, dry_run=dry_run, as_json=as_json):
        return 0
    removed = ask_owner(paths[0], index_path, ask="purge", namespace=namespace)
    if removed is None:
        with unchanged(paths, index_path) as store:
            removed = store.purge(namespace)
    if as_json:
        print_json(removed)
    else:
        click.echo(f"removed {removed['keys']:,} chunks, {size_text(removed['bytes'])}")
    if removed["pinned"]:
        raise PartialSuccess(f"{len(removed['pinned']):,} chunks are pinned and stay")
    return 0
