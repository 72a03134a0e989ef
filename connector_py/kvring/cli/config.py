"""`kvring config`: what LMCache, vLLM or SGLang is started with, from a path and a size."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from kvring import ConfigError
from kvring._native import check_options
from kvring.cli.deployment import (
    Places,
    check_paths,
    docker_command,
    seccomp_profile,
    seccomp_profile_over,
    systemd_unit,
)
from kvring.cli.failure import WrongArguments
from kvring.cli.kubernetes import METRICS_PORT, server_manifest, vllm_manifest
from kvring.cli.parameters import FiniteRange, ReadablePath
from kvring.cli.primary_tier import advice
from kvring.cli.programs import LMCACHE_ADAPTERS, lmcache, sglang, vllm
from kvring.cli.required_mounts import with_required_mounts
from kvring.cli.sections import SectionedCommand
from kvring.cli.shared_tier import FORMS, directory_of, shared_tier, take_options
from kvring.shared_tier.limits import LIMITS

__all__ = ["config"]

_FORM = "kvring.config.form"
# Of its tier, which reads them itself (kvring/vllm/tier.py).
_OPTIONS_OF_VLLM = ("locality", "promote")
_FORMS: dict[str, Callable[[Places, list[str]], str]] = {
    "systemd": systemd_unit,
    "docker": docker_command,
}


def _choose_form(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if not is_given:
        return
    assert parameter.name is not None
    if other := context.meta.get(_FORM):
        raise WrongArguments(f"--{other} and --{parameter.name} exclude each other; name one")
    context.meta[_FORM] = parameter.name


def _form(name: str, text: str) -> Callable[[Any], Any]:
    """Return an option for what is printed, of which one at most is given."""
    return click.option(
        f"--{name}", is_flag=True, expose_value=False, callback=_choose_form, help=text
    )


@click.command(
    cls=SectionedCommand,
    sections={
        "Program": ("program", "kind", "shared"),
        "Store": ("others",),
        "Memory": ("l1_size_gb", "huge_pages", "model", "max_model_len"),
        "Output": (),
    },
    short_help="Print the configuration and commands that start an engine.",
)
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.argument("capacity", metavar="CAPACITY", required=False)
@click.option(
    "--for",
    "program",
    type=click.Choice(["lmcache", "vllm", "sglang"]),
    default="lmcache",
    show_default=True,
    help="Program: LMCache's server, or vLLM or SGLang without LMCache.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(LMCACHE_ADAPTERS)),
    help="Type of LMCache's adapter, by default plugin (docs/how-to/lmcache.md).",
)
@click.option(
    "--shared",
    metavar="URL",
    help=f"Shared tier behind the store: {FORMS} (docs/how-to/shared-tier.md).",
)
@click.option(
    "--option",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the store (docs/reference/options.md); repeat it for several.",
)
@click.option(
    "--l1-size-gb",
    type=FiniteRange(min=0, min_open=True, max=1 << 20),
    default=64,
    show_default=True,
    metavar="GB",
    help="CPU memory above the store; of SGLang per rank.",
)
@click.option(
    "--model",
    type=ReadablePath(exists=True, path_type=Path),
    metavar="DIRECTORY",
    help="Model directory or config.json, to check --l1-size-gb for vLLM.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="vLLM's option for that check. (default: from the model's config.json)",
)
@click.option("--huge-pages", is_flag=True, help="Use huge pages for that memory (LMCache only).")
@_form("json", "Print the JSON alone.")
@_form("systemd", "Print a systemd unit.")
@_form("docker", "Print a Docker command.")
@_form("kubernetes", "Print a Kubernetes manifest.")
@_form("seccomp", "Print a seccomp profile with io_uring, without PATH.")
@click.option(
    "--seccomp-base",
    "base",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Print this profile plus io_uring, such as Docker's default.json.",
)
@click.pass_context
def config(
    context: click.Context,
    paths: tuple[str, ...],
    capacity: str | None,
    program: str,
    kind: str | None,
    shared: str | None,
    others: tuple[str, ...],
    l1_size_gb: float,
    model: Path | None,
    max_model_len: int | None,
    huge_pages: bool,
    base: TextIO | None,
) -> int:
    """Print the configuration and commands that start LMCache's server, vLLM or SGLang.

    CAPACITY is a size such as 500GiB, or 'all' of a block device: one for all paths, or one per
    path, separated by commas. Nothing is opened or made.
    """
    form = context.meta.get(_FORM)
    if base is not None or form == "seccomp":
        _refuse_all_but_seccomp(context, form)
        profile = seccomp_profile() if base is None else _with_io_uring(base)
        click.echo(json.dumps(profile, indent=2))
        return 0
    if not paths or capacity is None:
        raise click.UsageError("PATH and CAPACITY are needed, such as /mnt/nvme/kvring 500GiB")
    _check_program(program, form, kind, shared, model, max_model_len, huge_pages=huge_pages)
    tier = None if shared is None else shared_tier(shared)
    own = _OPTIONS_OF_VLLM if program == "vllm" else ()
    parameters = _parameters(paths, capacity, others, own, has_shared=tier is not None)
    for directory in directory_of(tier):
        _refuse_inside(directory, _places(parameters))
    parameters = with_required_mounts(parameters, in_container=form in ("docker", "kubernetes"))
    if form == "kubernetes" and program == "lmcache":
        # Of its probe.
        parameters.setdefault("metrics_port", METRICS_PORT)
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
        places = Places(_places(parameters), directory_of(tier))
        check_paths(places, form)
        if form == "kubernetes":
            manifest = vllm_manifest if program == "vllm" else server_manifest
            click.echo(manifest(places, start.commands[0], l1_size_gb, parameters))
        else:
            click.echo(_FORMS[form](places, start.commands[0]))
    else:
        blocks = [json.dumps(start.spec, indent=2), *map(shlex.join, start.commands)]
        click.echo("\n\n".join(blocks))
    if huge_pages:
        _tell_huge_pages(l1_size_gb)
    return 0


def _refuse_all_but_seccomp(context: click.Context, form: str | None) -> None:
    """Refuse what a profile does not depend on: it would be passed over in silence."""
    given = [
        "PATH" if isinstance(parameter, click.Argument) else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name != "base" and context.params.get(str(parameter.name))
        if context.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE
    ]
    if form not in (None, "seccomp"):
        given.append(f"--{form}")
    if given:
        names = ", ".join(dict.fromkeys(given))
        raise WrongArguments(
            f"--seccomp and --seccomp-base print a profile alone; leave out {names}"
        )


def _check_program(
    program: str,
    form: str | None,
    kind: str | None,
    shared: str | None,
    model: Path | None,
    max_model_len: int | None,
    *,
    huge_pages: bool,
) -> None:
    forms = {"lmcache": set(_FORMS) | {"json", "kubernetes"}, "vllm": {"json", "kubernetes"}}
    has_form = form is None or form in forms.get(program, {"json"})
    if program != "lmcache" and (kind or shared or huge_pages or not has_form):
        names = " or ".join(f"--{name}" for name in sorted(forms.get(program, {"json"})))
        text = f"--for {program} goes with {names} alone: the others are of LMCache's server"
        raise click.UsageError(text)
    if program != "vllm" and (model or max_model_len):
        raise click.UsageError("--model and --max-model-len go with --for vllm")
    if max_model_len and model is None:
        raise click.UsageError("--max-model-len goes with --model")
    if shared is not None and kind == "native_plugin":
        raise click.UsageError("--shared goes with --type plugin: native_plugin knows no adapters")


def _parameters(
    paths: tuple[str, ...],
    capacity: str,
    others: tuple[str, ...],
    own: Sequence[str],
    *,
    has_shared: bool,
) -> dict[str, Any]:
    """Return the options of a store, checked, and behind them those of the program's `own`."""
    options = _options(others)
    of_program = {name: options.pop(name) for name in own if name in options}
    if "capacity" in options or "paths" in options:
        text = "--option capacity and paths: these are arguments, such as /mnt/a /mnt/b 500GiB,1TiB"
        raise WrongArguments(text)
    if not has_shared and (of_tier := sorted(LIMITS.keys() & options)):
        raise WrongArguments(
            f"--option {of_tier[0]} is one of a shared tier; name that by --shared"
        )
    parameters = {
        "path": _one_or_all(_paths(paths, options.pop("path", list(paths)))),
        "capacity": _one_or_all(capacity.split(",")),
        **options,
    }
    taken = take_options(parameters) if has_shared else {}
    try:
        check_options(**parameters)
    except ConfigError as error:
        raise WrongArguments(str(error)) from error
    parameters["path"] = _one_or_all([_absolute(path) for path in _all(parameters["path"])])
    if parameters.get("index_path", "none") != "none":
        parameters["index_path"] = _absolute(parameters["index_path"])
    return {**parameters, **taken, **of_program}


def _options(others: tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in others:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongArguments(f"--option {text!r} has no '='; write --option NAME=VALUE")
        if name in options:
            raise WrongArguments(f"--option {name} is given twice; name one value")
        options[name] = _value(value)
    return options


def _paths(paths: tuple[str, ...], option: Any) -> list[str]:
    """Return the paths of an option, which has to have those before the capacity."""
    further = _all(option)
    are_paths = all(isinstance(path, str) for path in further)
    if not are_paths or not {*map(Path, paths)} <= {*map(Path, further)}:
        text = "--option path is not what stands before CAPACITY; write all paths there, such as "
        raise WrongArguments(f"{text}/mnt/nvme0/kvring /mnt/nvme1/kvring 500GiB")
    return further


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _all(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _refuse_inside(shared: Path, places: list[Path]) -> None:
    for place in places:
        if shared.is_relative_to(place):
            text = (
                f"--shared: {shared} is in the store's own {place}; name a directory of all nodes"
            )
            raise WrongArguments(text)


def _places(parameters: dict[str, Any]) -> list[Path]:
    """Return the paths of a store, and where the index of its devices is."""
    index_path = parameters.get("index_path", "none")
    further = [] if index_path == "none" else [index_path]
    return [Path(path) for path in (*_all(parameters["path"]), *further)]


def _with_io_uring(base: TextIO) -> dict[str, Any]:
    try:
        return seccomp_profile_over(json.load(base))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"--seccomp-base {base.name}: it is no seccomp profile of a container runtime, as "
        raise click.UsageError(f"{text}seccomp/default.json of moby: {error!r}") from error


def _value(text: str) -> Any:
    """Read a mapping or a number as JSON, and anything else as it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _tell_huge_pages(l1_size_gb: float) -> None:
    count = round(l1_size_gb * (1 << 30)) // (2 << 20) + 1
    print(
        f"kvring config: before the server starts: sysctl vm.nr_hugepages={count}", file=sys.stderr
    )
