"""`kvring info` and `kvring usage`: what a store is, who takes its space, what it writes."""

import time
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from kvring._native import StoredChunks
from kvring.cli.endurance import dwpd_option, print_writes, writes_of
from kvring.cli.failure import Failure
from kvring.cli.output import console, grid, print_json, printable, size_text, table
from kvring.cli.owner import ask_owner
from kvring.cli.parameters import json_option
from kvring.cli.places import size_bytes as block_device_bytes
from kvring.cli.places import taken_on_disk
from kvring.cli.stores import index_path_option, look_at_each, store_paths

__all__ = ["info", "usage"]

_BLOCK_BYTES = 4096


@click.command(short_help="Show a store: owner, chunks, format.")
@store_paths
@index_path_option
@json_option
def info(paths: tuple[Path, ...], index_path: Path | None, as_json: bool) -> int:
    """Show the store at each PATH: owner, chunks, format, disk space.

    It reads the index without a lock, also of an open store; concurrent changes may be missing.
    """

    def document_of(path: Path, chunks: StoredChunks) -> dict[str, Any]:
        return {**_document(path, chunks), **_space(path, index_path)}

    documents, faults = look_at_each(paths, index_path, document_of)
    if not as_json:
        for number, document in enumerate(documents):
            if number > 0:
                click.echo()
            _print_info(document)
    elif documents:
        print_json(documents[0] if len(paths) == 1 else documents)
    if faults:
        raise Failure(*faults)
    return 0


def _document(path: Path, chunks: StoredChunks) -> dict[str, Any]:
    facts = chunks.facts()
    namespaces = _no_namespaces()
    _add_chunks(namespaces, chunks)
    return {
        "path": str(path),
        **facts,
        "namespaces": len(namespaces),
        "keys": sum(one["keys"] for one in namespaces.values()),
        "stored_bytes": sum(one["stored_bytes"] for one in namespaces.values()),
        "allocated_bytes": sum(one["allocated_bytes"] for one in namespaces.values()),
    }


@click.command(short_help="Show the space of each model and tenant, and drive wear.")
@store_paths
@index_path_option
@dwpd_option
@json_option
def usage(paths: tuple[Path, ...], index_path: Path | None, dwpd: float, as_json: bool) -> int:
    """Show the space of each namespace of the store at PATH: model, or model@salt.

    It reads the index as info does. The owner of an open store reports the bytes written to each
    drive, and those that admit and write_budget saved. The drive life counts writes of chunks only.
    """
    found = _no_namespaces()
    read, faults = look_at_each(paths, index_path, lambda _, chunks: _add_chunks(found, chunks))
    if not read:
        raise Failure(*faults)
    namespaces = dict(sorted(found.items(), key=lambda item: -item[1]["allocated_bytes"]))
    writes, why_not = None, None
    try:
        writes = writes_of(paths[0], index_path, dwpd)
    except Failure as failure:
        # The rest is worth being told.
        why_not = " ".join(failure.sentences)
    if as_json:
        print_json({"namespaces": namespaces, "writes": writes, "writes_unknown": why_not})
    else:
        _print_usage(namespaces)
        if writes is not None:
            print_writes(writes)
        else:
            click.echo(printable(f"writes are not known: {why_not}"))
    if faults:
        raise Failure(*faults)
    return 0


def _no_namespaces() -> defaultdict[str, dict[str, int]]:
    names = ("keys", "stored_bytes", "allocated_bytes", "last_used_ms", "uses")
    return defaultdict(lambda: dict.fromkeys(names, 0))


def _add_chunks(found: defaultdict[str, dict[str, int]], chunks: StoredChunks) -> None:
    for chunk in chunks:
        one = found[chunk["namespace"]]
        length_bytes = chunk["length_bytes"]
        one["keys"] += 1
        one["stored_bytes"] += length_bytes
        one["allocated_bytes"] += -(-length_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        one["last_used_ms"] = max(one["last_used_ms"], chunk["last_used_ms"])
        one["uses"] += chunk["uses"]


def _space(path: Path, index_path: Path | None) -> dict[str, int | None]:
    """Return what a store takes of its disk, and its capacity, which only its owner knows."""
    try:
        answer = ask_owner(path, index_path, ask="stats")
    except Failure:
        answer = None
    taken_bytes = block_device_bytes(path) if path.is_block_device() else taken_on_disk(path)
    capacities = [
        one["capacity_bytes"]
        for one in (answer["stats"]["paths"] if answer else [])
        if Path(one["path"]).resolve() == path.resolve()
    ]
    return {"taken_bytes": taken_bytes, "capacity_bytes": sum(capacities) or None}


def _print_info(document: dict[str, Any]) -> None:
    held = document["holder"] or (
        "none; closed cleanly"
        if document["is_closed_in_order"]
        else "none visible from here; not closed cleanly"
    )
    facts = {
        "store": document["path"],
        "id": document["store_id"],
        "layout": document["layout"] or "block device",
        "format": f"version {document['format_version']}",
        "made": _moment(document["created_ms"]),
        "opened last": _moment(document["opened_ms"]),
        "open in": held,
        "chunks": f"{document['keys']:,}, {size_text(document['stored_bytes'])}",
        "taken on disk": size_text(document["taken_bytes"]),
        "capacity": size_text(document["capacity_bytes"])
        if document["capacity_bytes"]
        else "set by the open of the store; no owner answers",
        "index": size_text(document["index_bytes"]),
        "namespaces": f"{document['namespaces']:,}",
        **({"paths": _paths_text(document)} if document["members"] else {}),
    }
    shown = grid()
    for name, text in facts.items():
        shown.add_row(name, text)
    console().print(shown)


def _paths_text(document: dict[str, Any]) -> str:
    members = document["members"]
    names = sorted(member["path"] or f"not known ({member['store_id']})" for member in members)
    return f"{len(members)}: {', '.join(names)}"


def _print_usage(namespaces: dict[str, dict[str, int]]) -> None:
    numbers = ("chunks", "bytes", "on disk", "uses", "unused for")
    shown = table(*numbers, "namespace", right=numbers)
    now_ms = time.time() * 1000
    for name, one in namespaces.items():
        shown.add_row(
            f"{one['keys']:,}",
            size_text(one["stored_bytes"]),
            size_text(one["allocated_bytes"]),
            f"{one['uses']:,}",
            str(timedelta(seconds=max(0, round((now_ms - one["last_used_ms"]) / 1000)))),
            name or "(keys not of LMCache's form)",
        )
    console().print(shown)


def _moment(time_ms: int | None) -> str:
    if time_ms is None:
        return "not known"
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(" ", "seconds")
