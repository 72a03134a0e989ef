"""`kvring config`: what LMCache, vLLM or SGLang is started with, from a path and a size."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click

from kvring import ConfigError
from kvring._native import check_options
from kvring.cli.deployment import (
    docker_command,
    kubernetes_manifest,
    seccomp_profile,
    seccomp_profile_over,
    systemd_unit,
)
from kvring.cli.failure import WrongArguments
from kvring.cli.primary_tier import advice
from kvring.cli.programs import LMCACHE_ADAPTERS, lmcache, sglang, vllm
from kvring.cli.shared_tier import FORMS, directory_of, shared_tier, take_options

__all__ = ["config"]

_EPILOG = """
Nothing is opened or made, and what is printed is all that is needed. Exit status: 0, or 2 for wrong
arguments.
"""

_FORMS: dict[str, Callable[[list[Path], list[str]], str]] = {
    "systemd": systemd_unit,
    "docker": docker_command,
    "kubernetes": kubernetes_manifest,
}


@click.command(epilog=_EPILOG, short_help="Print the JSON with a store, and what to start.")
@click.argument("path", required=False)
@click.argument("capacity", required=False)
@click.option(
    "--for",
    "program",
    type=click.Choice(["lmcache", "vllm", "sglang"]),
    default="lmcache",
    show_default=True,
    help="LMCache's server, and vLLM with that; or vLLM or SGLang alone.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(LMCACHE_ADAPTERS)),
    help="LMCache's type of adapter, by default plugin; docs/lmcache.md compares them.",
)
@click.option(
    "--shared",
    metavar="URL",
    help=f"A tier that nodes share, behind the store: {FORMS}. docs/scale-out.md.",
)
@click.option(
    "--option",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another option of the store, as docs/configuration.md has it; may be repeated.",
)
@click.option(
    "--l1-size-gb",
    type=click.FloatRange(min=0, min_open=True),
    default=64,
    show_default=True,
    metavar="GB",
    help="CPU memory above the store; of SGLang that of each rank.",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    metavar="DIRECTORY",
    help="Of vLLM: the model, or its config.json, by which the least --l1-size-gb is told.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Of vLLM: the same option of its own; by default what the model's config.json has.",
)
@click.option("--huge-pages", is_flag=True, help="Have that of LMCache made of huge pages.")
@click.option("--json", "form", flag_value="json", help="Print only the JSON.")
@click.option("--systemd", "form", flag_value="systemd", help="Print a systemd unit.")
@click.option("--docker", "form", flag_value="docker", help="Print a command for Docker.")
@click.option("--kubernetes", "form", flag_value="kubernetes", help="Print a manifest.")
@click.option(
    "--seccomp",
    "form",
    flag_value="seccomp",
    help="Print a seccomp profile that allows io_uring; it needs no PATH.",
)
@click.option(
    "--seccomp-base",
    "base",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Print this profile, as Docker's default (github.com/moby/profiles), and io_uring.",
)
def config(
    path: str | None,
    capacity: str | None,
    program: str,
    kind: str | None,
    shared: str | None,
    others: tuple[str, ...],
    l1_size_gb: float,
    model: Path | None,
    max_model_len: int | None,
    huge_pages: bool,
    form: str | None,
    base: TextIO | None,
) -> int:
    """Print how to start LMCache's server, vLLM or SGLang with a store of CAPACITY at PATH.

    CAPACITY is a size such as 500GiB, or 'all' of a block device. What is printed last is for
    vLLM where it uses LMCache's server.
    """
    if base is not None:
        click.echo(json.dumps(_with_io_uring(base), indent=2))
        return 0
    if form == "seccomp":
        click.echo(json.dumps(seccomp_profile(), indent=2))
        return 0
    if path is None or capacity is None:
        raise click.UsageError("PATH and CAPACITY are needed, such as /mnt/nvme/kvring 500GiB")
    if program != "lmcache" and (kind or shared or huge_pages or form not in (None, "json")):
        text = f"--for {program} goes with --json alone: the other options are of LMCache's server"
        raise click.UsageError(text)
    if program != "vllm" and (model or max_model_len):
        raise click.UsageError("--model and --max-model-len go with --for vllm")
    if max_model_len and model is None:
        raise click.UsageError("--max-model-len goes with --model")
    if shared is not None and kind == "native_plugin":
        raise click.UsageError("--shared goes with --type plugin: native_plugin knows no adapters")
    tier = None if shared is None else shared_tier(shared)
    parameters = _parameters(path, capacity, others, has_shared=tier is not None)
    if program == "vllm":
        click.echo(f"kvring config: {advice(model, max_model_len, l1_size_gb)}", err=True)
        start = vllm(parameters, l1_size_gb)
    elif program == "sglang":
        if l1_size_gb != round(l1_size_gb):
            text = f"--l1-size-gb {l1_size_gb:g}: SGLang takes whole GB, from 1 on"
            raise WrongArguments(text)
        start = sglang(parameters, l1_size_gb)
    else:
        start = lmcache(
            parameters,
            l1_size_gb,
            kind or "plugin",
            huge_pages=huge_pages,
            shared=tier,
        )
    if form == "json":
        click.echo(json.dumps(start.spec))
    elif form is not None:
        places = [Path(path).absolute(), *directory_of(tier)]
        click.echo(_FORMS[form](places, start.commands[0]))
    else:
        blocks = [json.dumps(start.spec, indent=2), *map(shlex.join, start.commands)]
        click.echo("\n\n".join(blocks))
    if huge_pages:
        _tell_huge_pages(l1_size_gb)
    return 0


def _parameters(
    path: str, capacity: str, others: tuple[str, ...], *, has_shared: bool
) -> dict[str, Any]:
    parameters: dict[str, Any] = {"path": str(Path(path).expanduser().absolute())}
    parameters["capacity"] = capacity
    for text in others:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongArguments(f"--option {text!r} has no '='; write --option NAME=VALUE")
        parameters[name] = _value(value)
    of_tier = take_options(parameters) if has_shared else {}
    try:
        check_options(**parameters)
    except ConfigError as error:
        raise WrongArguments(str(error)) from error
    return {**parameters, **of_tier}


def _with_io_uring(base: TextIO) -> dict[str, Any]:
    try:
        return seccomp_profile_over(json.load(base))
    except (ValueError, KeyError, TypeError) as error:
        text = f"--seccomp-base {base.name}: it is no seccomp profile of a container runtime, as "
        raise click.UsageError(f"{text}seccomp/default.json of moby: {error!r}") from error


def _value(text: str) -> Any:
    """Read a mapping or a number as JSON, and anything else as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tell_huge_pages(l1_size_gb: float) -> None:
    count = round(l1_size_gb * (1 << 30)) // (2 << 20) + 1
    print(
        f"kvring config: before the server starts: sysctl vm.nr_hugepages={count}", file=sys.stderr
    )
