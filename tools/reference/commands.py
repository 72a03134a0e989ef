"""commands.md: the commands of kvring, by what click tells of them."""

import inspect
import re
from collections import Counter

import click

import kvring
from kvring.cli import kvring as group
from tools.reference.markdown import linked, sections

__all__ = ["page"]

# Options that so many commands have are described once.
_SHARED_BY = 3


def page() -> str:
    """Return the page."""
    context = click.Context(group, info_name="kvring")
    commands = {name: group.commands[name] for name in group.list_commands(context)}
    counted = Counter(
        _option_text(command, option)
        for command in commands.values()
        for option in _options(command)
    )
    shared = [text for text, count in counted.items() if count >= _SHARED_BY]
    asking = ", ".join(
        f"`{name}`"
        for name, command in commands.items()
        if any(option.name == "yes" for option in _options(command))
    )
    introduction = [
        *_paragraphs(group.help),
        *_paragraphs(group.epilog),
        f"{asking} ask before they remove something; without a terminal they need `--yes`.",
        "Options of several commands:",
        "\n".join(shared),
    ]
    parts = [_section(name, command, shared, context) for name, command in commands.items()]
    return sections("Commands", *introduction, *parts)


def _section(name: str, command: click.Command, shared: list[str], parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    own, of_store, others = [], [], []
    for option in _options(command):
        text = _option_text(command, option)
        if _is_of_store(option):
            of_store.append(f"`{option.opts[0]}`")
        elif text in shared:
            others.append(f"`{option.opts[0]}`")
        else:
            own.append(text)
    if of_store:
        own.append(f"- {', '.join(of_store)}: [options of a store](options.md).")
    if others:
        own.append(f"- {', '.join(others)}")
    parts = [
        f"## {name}\n",
        f"    {usage}\n",
        *(f"{paragraph}\n" for paragraph in _paragraphs(command.help)),
        *own,
        *(f"\n{paragraph}" for paragraph in _paragraphs(command.epilog)),
    ]
    return "\n".join(parts)


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _option_text(command: click.Command, option: click.Option) -> str:
    """Return a line on an option, the same for each command that has the same one."""
    name = option.opts[0]
    if not option.is_flag:
        name += f"={option.make_metavar(click.Context(command))}"
    default = f" Default: {option.default}." if option.show_default else ""
    return f"- `{name}`: {linked(option.help or '')}{default}"


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
