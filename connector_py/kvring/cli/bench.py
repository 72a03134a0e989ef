"""`kvring bench`: measure what a disk gives to kvring, the way fio measures a device."""

import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from kvring import ConfigError, KvRingError, options
from kvring._native import BenchPlan, BenchRun, bench_options
from kvring.cli.bench_report import document, print_json, print_table
from kvring.cli.failure import Failure, WrongArguments
from kvring.cli.interruption import interruption
from kvring.cli.machine import machine_facts
from kvring.cli.parameters import json_option
from kvring.cli.places import PlaceError, own_places, size_bytes
from kvring.cli.sections import SectionedCommand

_POLL_INTERVAL_S = 0.1
_PHASES = {"fill": "filling", "measure": "measuring", "check": "verifying", "end": "closing"}

# The rest is given by --option NAME=VALUE.
_STORE_FLAGS = ("capacity", "engine", "layout", "checksum", "durability")

_DESCRIPTION = """
Benchmark kvring on a drive with fio-style options.

It uses a new store below --path, and removes it at the end; the next run removes the store of a
killed run. Other stores are not touched.
"""

_EPILOG = """
Latency is that of a batch, from submit until its completion is drained. MB are 1e6 bytes; in --bs
and --size 64k and 64KiB are 65,536 bytes.
"""


class UsageError(Exception):
    """The command line asks for something that cannot be; the message tells the way out."""


def _help(option: dict[str, Any]) -> str:
    default = "" if option["default"] in (None, "0", "off") else f" (default: {option['default']})"
    return f"{option['meaning']}; {option['range']}{default}"


def _with_options(command: Any) -> Any:
    for name in reversed(_STORE_FLAGS):
        more = "; by default as much as the workload needs, all of a block device"
        text = _help(options()[name]) + (more if name == "capacity" else "")
        command = click.option(f"--{name}", metavar=name.upper(), help=text)(command)
    for name, option in reversed(bench_options().items()):
        is_switch = option["range"] == "'on' or 'off'"
        # `--verify` alone means on.
        switch: dict[str, Any] = {"is_flag": False, "flag_value": "on"} if is_switch else {}
        command = click.option(
            f"--{name}",
            name,
            **switch,
            metavar=(option["unit"] or name).upper(),
            help=_help(option),
        )(command)
    return command


@click.command(
    "bench",
    cls=SectionedCommand,
    sections={
        "Workload": bench_options(),
        "Store": (*_STORE_FLAGS, "paths", "erase_devices", "others"),
        "Output": (),
    },
    help=_DESCRIPTION,
    epilog=_EPILOG,
    short_help="Benchmark a drive with fio-style options.",
)
@_with_options
@click.option(
    "--path",
    "paths",
    required=True,
    multiple=True,
    metavar="PATH",
    help="Directory or block device to measure; repeat it for several paths.",
)
@click.option(
    "--erase-devices",
    is_flag=True,
    help="Format each block device of --path, and erase it at the end.",
)
@click.option(
    "--option",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the store (docs/reference/options.md); repeat it for several.",
)
@json_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="Replace this file with the output (default: standard output).",
)
def bench(**arguments: Any) -> int:
    """Measure what the arguments ask for, and print it."""
    try:
        return _measure(SimpleNamespace(**arguments))
    except (UsageError, PlaceError, ConfigError) as error:
        raise WrongArguments(str(error)) from error
    except PermissionError:
        # All commands say the same of it.
        raise
    except (KvRingError, OSError) as error:
        raise Failure(str(error)) from error


def _measure(arguments: SimpleNamespace) -> int:
    plan = _plan(arguments)
    store_options = _store_options(arguments)
    paths = [_place(text, arguments) for text in arguments.paths]
    _check_output(arguments.output)
    # A store that is refused would count as one that was fast.
    store_options.setdefault("admit", "always")
    capacity = store_options.setdefault("capacity", _capacities(paths, plan))
    _check_free_space(paths, plan)
    machine = machine_facts(paths)
    others = {name: value for name, value in store_options.items() if name != "capacity"}
    with interruption() as asked:
        with own_places(paths, _tell) as places:
            run = BenchRun(plan, places, capacity, **others)
            asked.call(run.stop)
            _follow(run)
            report = run.report()
        shown = str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]
        result = document(plan, {"path": shown, **store_options}, machine, report)
        _print(result, arguments.output, as_json=arguments.as_json)
    if asked.signal is not None:
        return 128 + asked.signal
    return 1 if report["has_errors"] else 0


def _tell(sentence: str) -> None:
    print(f"kvring bench: {sentence}", file=sys.stderr)


def _plan(arguments: SimpleNamespace) -> BenchPlan:
    values = {name: getattr(arguments, name) for name in bench_options()}
    return BenchPlan(**{name: value for name, value in values.items() if value is not None})


def _store_options(arguments: SimpleNamespace) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in _STORE_FLAGS
        if getattr(arguments, name) is not None
    }
    for text in arguments.others:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option {text!r} has no '='; write --option NAME=VALUE")
        if name in (*_STORE_FLAGS, "path"):
            raise UsageError(f"--option {text!r} has a flag of its own; write --{name} VALUE")
        values[name] = value
    return values


def _place(text: str, arguments: SimpleNamespace) -> Path:
    path = Path(text)
    if path.is_block_device():
        if not arguments.erase_devices:
            raise UsageError(
                f"--path {text!r} is a block device: it would be formatted, and erased at the end. "
                f"To erase it, use --erase-devices; else name a directory"
            )
        if any(option.startswith("index_path=") for option in arguments.others):
            raise UsageError("--option index_path: the index of a run lies on its device; leave it")
        _tell(f"{text} is formatted now, and erased at the end, as --erase-devices says")
        return path
    if not path.is_dir():
        raise UsageError(
            f"--path {text!r} is neither a directory nor a block device; make it, or name another"
        )
    return path


def _capacities(paths: list[Path], plan: BenchPlan) -> int | str | list[int | str]:
    """Room for all at each path: nothing tells beforehand how evenly the keys are spread."""
    capacities: list[int | str] = [
        "all" if path.is_block_device() else plan.capacity_bytes for path in paths
    ]
    return capacities[0] if len(capacities) == 1 else capacities


def _check_output(output: Path | None) -> None:
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UsageError(
            f"--output {str(output)!r} cannot be a file there; name a file in an existing directory"
        )


def _check_free_space(paths: list[Path], plan: BenchPlan) -> None:
    needed_bytes: dict[int, int] = defaultdict(int)
    share_bytes = plan.stored_bytes // len(paths)
    for path in paths:
        if path.is_block_device():
            what, has_bytes, needed = str(path), size_bytes(path), share_bytes
        else:
            needed_bytes[path.stat().st_dev] += share_bytes
            has_bytes, needed = shutil.disk_usage(path).free, needed_bytes[path.stat().st_dev]
            what = f"the file system of {path}"
        if needed > has_bytes:
            raise UsageError(
                f"--size: the chunks take {needed} bytes, but {what} has {has_bytes} bytes free;"
                f" lower --size, or name another --path"
            )


def _follow(run: BenchRun) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        # Signals are handled between two calls.
        while not run.wait(_POLL_INTERVAL_S):
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
        while not run.wait(_POLL_INTERVAL_S):
            state = run.poll()
            elapsed_s = max(state["elapsed_s"], 1e-3)
            rate = f"{state['bytes'] / 1e6 / elapsed_s:,.0f} MB/s"
            rate += f", {state['keys'] / elapsed_s:,.0f} ops/s"
            progress.update(
                task,
                completed=state["fraction"],
                description=_PHASES[state["phase"]],
                rate=rate if state["keys"] else "",
            )


def _print(result: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    show = print_json if as_json else print_table
    if output is None:
        show(result, sys.stdout)
        return
    with output.open("w", encoding="utf-8") as file:
        show(result, file)
