"""commands.md: the commands of kvring, by what click tells of them."""

import inspect
import re
from collections import Counter

import click

import kvring
from kvring._native import bench_options
from kvring.cli import kvring as group
from tools.reference.markdown import linked, sections, table

__all__ = ["page"]

# Options that so many commands have are described once.
_SHARED_BY = 3
_Row = tuple[str, str]


def page() -> str:
    """Return the page."""
    context = click.Context(group, info_name="kvring")
    commands = {name: group.commands[name] for name in group.list_commands(context)}
    counted = Counter(
        _row(command, option) for command in commands.values() for option in _options(command)
    )
    shared = [row for row, count in counted.items() if count >= _SHARED_BY]
    asking = ", ".join(
        f"`{name}`"
        for name, command in commands.items()
        if any(option.name == "yes" for option in _options(command))
    )
    without_json = ", ".join(
        f"`{name}`"
        for name, command in commands.items()
        if all(option.name != "as_json" for option in _options(command))
    )
    introduction = [
        *_paragraphs(group.help),
        *_paragraphs(group.epilog),
        f"{asking} ask before they remove something.",
        f"Options of several commands (`--json`: of all but {without_json}):",
        table(("option", "effect"), shared),
    ]
    parts = [_section(name, command, set(shared), context) for name, command in commands.items()]
    return sections("Commands", *introduction, *parts)


def _section(name: str, command: click.Command, shared: set[_Row], parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    own, of_store, of_bench, others = [], [], [], []
    for option in _options(command):
        row = _row(command, option)
        if benchmarked := bench_options().get(option.name or "") if name == "bench" else None:
            of_bench.append(f"`{option.opts[0]}={benchmarked['default']}`")
        elif _is_of_store(option):
            of_store.append(f"`{option.opts[0]}`")
        elif row in shared and option.name != "as_json":
            others.append(f"`{option.opts[0]}`")
        elif row not in shared:
            own.append(row)
    if of_bench:
        # Their help is long, and of the workload alone.
        own.append((", ".join(of_bench), "the workload, with defaults: `kvring bench --help`"))
    if of_store:
        own.append((", ".join(of_store), "[options of a store](options.md)"))
    parts = [
        f"## {name}",
        f"    {usage.replace(' [OPTIONS]', '')}",
        *_paragraphs(command.help),
        table(("option", "effect"), own).rstrip() if own else "",
        f"Also {', '.join(others)}." if others else "",
        *_paragraphs(command.epilog),
    ]
    return "\n\n".join(part for part in parts if part)


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _row(command: click.Command, option: click.Option) -> _Row:
    """Return an option and its effect, the same for each command that has the same one."""
    name, text = option.opts[0], option.help or ""
    if not option.is_flag:
        values = option.make_metavar(click.Context(command))
        # A bar ends a cell.
        values = re.sub(r"^\[(.*)\]$", r"{\1}", values).replace("|", ",")
        name += f"={values}"
    default = option.default if option.show_default else None
    return f"`{name}`", linked(text) + (f" (default: {default})" if default else "")


def _is_of_store(option: click.Option) -> bool:
    """Say whether an option is described in options.md."""
    described = kvring.options().get(option.name or "")
    return described is not None and (option.help or "").startswith(str(described["meaning"]))


def _paragraphs(text: str | None) -> list[str]:
    """Return paragraphs; those that click leaves as they are are code."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return [
        re.sub(r"^ *", "    ", part.removeprefix("\b\n"), flags=re.M)
        if part.startswith("\b")
        else linked(" ".join(part.split()))
        for part in parts
        if part
    ]
