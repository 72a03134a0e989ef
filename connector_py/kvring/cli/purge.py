"""`kvring purge`: remove a namespace."""

from pathlib import Path
from typing import Any

import click

from kvring._native import is_of_model
from kvring.cli.consent import Losses, consent_options, has_consent
from kvring.cli.failure import Failure, PartialSuccess, WrongArguments
from kvring.cli.opening import facts_of_all, unchanged
from kvring.cli.output import count_text, print_json, size_text
from kvring.cli.owner import ask_owner
from kvring.cli.parameters import json_option
from kvring.cli.stores import (
    index_path_option,
    listed_namespaces,
    missing_namespace,
    store_paths,
)

__all__ = ["purge"]

_EPILOG = """
Exit status: 4 if pinned chunks stay.
"""


@click.command(epilog=_EPILOG, short_help="Remove the chunks of a model or tenant.")
@store_paths
@index_path_option
@click.option(
    "--namespace",
    metavar="NAME",
    help="Namespace: model or model@salt; '' for keys of another form.",
)
@click.option(
    "--model", metavar="NAME", help="Remove all namespaces of a model: any salt, identity, engine."
)
@consent_options
@json_option
def purge(
    paths: tuple[Path, ...],
    index_path: Path | None,
    namespace: str | None,
    model: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove the chunks of a namespace or a model from the store at PATH.

    The owner of an open store does it, and keeps pinned chunks. Name all paths of the store.
    """
    if (namespace is None) == (model is None):
        raise WrongArguments("say one of --namespace and --model, not both")
    name = namespace if model is None else model
    assert name is not None
    try:
        name.encode()
    except UnicodeEncodeError:
        option = "--namespace" if model is None else "--model"
        raise WrongArguments(f"{option} is not UTF-8, and all keys are") from None
    there = _namespaces(paths, index_path)
    chosen = {
        one: size
        for one, size in there.items()
        if (one == name if model is None else is_of_model(one, name))
    }
    if not chosen:
        raise missing_namespace(paths, "namespace" if model is None else "model", name, there)
    for one, (count, size_bytes) in chosen.items():
        click.echo(
            f"{one!r} has {count_text(count, 'chunk')}, {size_text(size_bytes)}", err=as_json
        )
    keys, stored_bytes = (sum(sizes) for sizes in zip(*chosen.values(), strict=True))
    losses = Losses(keys, stored_bytes, [])
    if not has_consent(losses, yes=yes, dry_run=dry_run, as_json=as_json):
        return 0
    removed = _sum(_purge(paths, index_path, list(chosen)))
    if as_json:
        print_json(removed)
    else:
        click.echo(f"removed {count_text(removed['keys'], 'chunk')}, {size_text(removed['bytes'])}")
    if removed["pinned"]:
        pinned = count_text(len(removed["pinned"]), "chunk is pinned", "chunks are pinned")
        raise PartialSuccess(f"not removed: {pinned}")
    return 0


def _namespaces(paths: tuple[Path, ...], index_path: Path | None) -> dict[str, tuple[int, int]]:
    """Return chunks and bytes of each namespace; its owner knows them at once.

    Raises:
        Failure: There is no store, or it has further paths.
    """
    answer = ask_owner(paths[0], index_path, ask="stats")
    if answer is None:
        facts_of_all(paths, index_path)
        return listed_namespaces(paths, index_path)
    _need_paths(answer, paths, index_path)
    return {name: (one["keys"], one["allocated_bytes"]) for name, one in answer["usage"].items()}


def _need_paths(answer: dict[str, Any], paths: tuple[Path, ...], index_path: Path | None) -> None:
    """Go on if these are the paths of the store that the owner has open.

    Raises:
        Failure: There are others.
    """
    others = [ask_owner(path, index_path, ask="stats") for path in paths[1:]]
    named = {one.get("path") for one in (answer, *others) if one is not None}
    all_paths = [one["path"] for one in answer["stats"]["paths"]]
    for path, other in zip(paths[1:], others, strict=True):
        known = str(path) if other is None else other.get("path")
        if known not in all_paths or (other and other["process_id"] != answer["process_id"]):
            raise Failure(f"{path} is no path of the store of {paths[0]}; purge each store alone")
    open_paths = [one["path"] for one in answer["stats"]["paths"] if one["in_use"]]
    if further := [one for one in open_paths if one not in named]:
        message = f"the store has {len(open_paths)} paths; name also {', '.join(further)}"
        raise Failure(message)


def _purge(
    paths: tuple[Path, ...], index_path: Path | None, namespaces: list[str]
) -> list[dict[str, Any]]:
    removed = []
    for one in namespaces:
        answer = ask_owner(paths[0], index_path, ask="purge", namespace=one)
        if answer is None:
            break
        removed.append(answer)
    # The owner may go between two of them.
    rest = namespaces[len(removed) :]
    if not rest:
        return removed
    with unchanged(paths, index_path) as store:
        return removed + [store.purge(one) for one in rest]


def _sum(removed: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "keys": sum(one["keys"] for one in removed),
        "bytes": sum(one["bytes"] for one in removed),
        "pinned": [key for one in removed for key in one["pinned"]],
    }
