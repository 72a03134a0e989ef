"""`kvring bench`: measure what a directory gives to kvring, the way fio measures a device."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from kvring import ConfigError, KvRingError, options
from kvring._native import LoadPlan, LoadRun, load_options
from kvring.cli.bench_report import document, print_json, print_table
from kvring.cli.interruption import interruption
from kvring.cli.machine import machine_facts

_POLL_INTERVAL_S = 0.1
_PHASES = {"fill": "filling", "measure": "measuring", "check": "verifying", "end": "closing"}

# The rest is given by --option NAME=VALUE.
_STORE_FLAGS = ("capacity", "engine", "layout", "checksum", "durability")

_DESCRIPTION = """
Measures what a directory gives to kvring, the way fio measures a device. It works on a store of its
own in a new directory below --path, and removes that at the end, also after a failure or Ctrl-C.
Stores that are there already are not touched.
"""

_EPILOG = """
An operation is one key; latency is that of a batch, from its submit until its completion was
drained. MB are 1e6 bytes. Exit status: 0, or 1 after errors (a miss is none), 2 for wrong
arguments, 128 and the number of the signal that ended it early.
"""


class UsageError(Exception):
    """The command line asks for something that cannot be; the message tells the way out."""


def add_parser(commands: Any) -> None:
    """Add the command to what `ArgumentParser.add_subparsers` returned."""
    parser = commands.add_parser(
        "bench",
        help="measure throughput and latency, like fio",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    load = parser.add_argument_group("load")
    for name, option in load_options().items():
        is_switch = option["range"] == "'on' or 'off'"
        load.add_argument(
            f"--{name}",
            # `--verify` alone means on.
            **({"nargs": "?", "const": "on"} if is_switch else {}),
            metavar=(option["unit"] or name).upper(),
            help=_help(option),
        )
    store = parser.add_argument_group("store")
    store.add_argument(
        "--path", required=True, metavar="DIRECTORY", help="existing directory to measure"
    )
    for name in _STORE_FLAGS:
        option_help = _help(options()[name])
        if name == "capacity":
            option_help += "; by default as much as the load needs"
        store.add_argument(f"--{name}", metavar=name.upper(), help=option_help)
    others = ", ".join(name for name in options() if name not in (*_STORE_FLAGS, "path"))
    store.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"another option of the store, may be repeated: {others}",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output-format",
        choices=("table", "json"),
        default="table",
        help="a table to read or a document to process (default: table)",
    )
    output.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write it there, replacing what is there (default: standard output)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure what the arguments ask for, and print it.

    Returns:
        The exit status.
    """
    try:
        return _measure(arguments)
    except (UsageError, ConfigError) as error:
        print(f"kvring bench: {error}", file=sys.stderr)
        return 2
    except (KvRingError, OSError) as error:
        print(f"kvring bench: {error}", file=sys.stderr)
        return 1


def _measure(arguments: argparse.Namespace) -> int:
    plan = _plan(arguments)
    store_options = _store_options(arguments)
    path = _existing_directory(arguments.path)
    _check_output(arguments.output)
    capacity = store_options.setdefault("capacity", plan.capacity_bytes)
    _check_free_space(path, plan)
    machine = machine_facts(path)
    others = {name: value for name, value in store_options.items() if name != "capacity"}
    with interruption() as asked:
        with _fresh_directory(path) as directory:
            load = LoadRun(plan, directory, capacity, **others)
            asked.call(load.stop)
            _follow(load)
            report = load.report()
        result = document(plan, {"path": str(path), **store_options}, machine, report)
        _print(result, arguments.output_format, arguments.output)
    if asked.signal is not None:
        return 128 + asked.signal
    return 1 if report["has_errors"] else 0


def _help(option: dict[str, Any]) -> str:
    default = "" if option["default"] in (None, "0", "off") else f" (default: {option['default']})"
    return f"{option['meaning']}; {option['range']}{default}".replace("%", "%%")


def _plan(arguments: argparse.Namespace) -> LoadPlan:
    values = {name: getattr(arguments, name) for name in load_options()}
    return LoadPlan(**{name: value for name, value in values.items() if value is not None})


def _store_options(arguments: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in _STORE_FLAGS
        if getattr(arguments, name) is not None
    }
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option {text!r} has no '='; write --option NAME=VALUE")
        if name in (*_STORE_FLAGS, "path"):
            raise UsageError(f"--option {text!r} has a flag of its own; write --{name} VALUE")
        values[name] = value
    return values


def _existing_directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise UsageError(f"--path {text!r} is not a directory; make it, or name another")
    return path


def _check_output(output: Path | None) -> None:
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UsageError(
            f"--output {str(output)!r} cannot be a file there; name a file in an existing directory"
        )


def _check_free_space(path: Path, plan: LoadPlan) -> None:
    free_bytes = shutil.disk_usage(path).free
    if plan.stored_bytes > free_bytes:
        raise UsageError(
            f"--size: the chunks take {plan.stored_bytes} bytes, but the file system of {path} has"
            f" {free_bytes} bytes free; lower --size, or name another --path"
        )


@contextmanager
def _fresh_directory(path: Path) -> Iterator[Path]:
    try:
        directory = Path(tempfile.mkdtemp(prefix="kvring-bench-", dir=path))
    except OSError as error:
        raise UsageError(
            f"--path {str(path)!r}: cannot make a directory in it: {error.strerror}; name another"
        ) from error
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _follow(load: LoadRun) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        # Signals are handled between two calls.
        while not load.wait(_POLL_INTERVAL_S):
            pass
        return
    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0, rate="")
        while not load.wait(_POLL_INTERVAL_S):
            state = load.poll()
            elapsed_s = max(state["elapsed_s"], 1e-3)
            rate = f"{state['bytes'] / 1e6 / elapsed_s:,.0f} MB/s"
            rate += f", {state['keys'] / elapsed_s:,.0f} ops/s"
            progress.update(
                task,
                completed=state["fraction"],
                description=_PHASES[state["phase"]],
                rate=rate if state["keys"] else "",
            )


def _print(result: dict[str, Any], output_format: str, output: Path | None) -> None:
    show = print_json if output_format == "json" else print_table
    if output is None:
        show(result, sys.stdout)
        return
    with output.open("w", encoding="utf-8") as file:
        show(result, file)
