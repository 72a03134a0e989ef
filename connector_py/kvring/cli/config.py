"""`kvring config`: what LMCache's server and vLLM are started with, from a path and a size."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvring import ConfigError
from kvring._native import check_options
from kvring.cli.deployment import docker_command, kubernetes_manifest, seccomp_profile, systemd_unit
from kvring.cli.failure import WrongArguments

__all__ = ["config"]

_EPILOG = """
Nothing is opened or made, and what is printed is all that is needed. Exit status: 0, or 2 for wrong
arguments.
"""

_ADAPTERS = {
    "plugin": ("kvring.lmcache", "KvringL2Adapter"),
    "native_plugin": ("kvring", "Connector"),
}

# From what LMCache 0.5.6 says where vLLM cannot reach its server; host and port are the defaults.
_VLLM_TRANSFER = {
    "kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555},
}

_FORMS: dict[str, Callable[[Path, list[str]], str]] = {
    "systemd": systemd_unit,
    "docker": docker_command,
    "kubernetes": kubernetes_manifest,
}


@click.command(epilog=_EPILOG, short_help="Print the JSON for LMCache, and what to start.")
@click.argument("path", required=False)
@click.argument("capacity", required=False)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(_ADAPTERS)),
    default="plugin",
    show_default=True,
    help="LMCache's type of adapter; docs/lmcache.md compares them.",
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
    help="CPU memory of the server.",
)
@click.option("--huge-pages", is_flag=True, help="Have that made of huge pages.")
@click.option("--json", "form", flag_value="json", help="Print only the JSON of the adapter.")
@click.option("--systemd", "form", flag_value="systemd", help="Print a systemd unit.")
@click.option("--docker", "form", flag_value="docker", help="Print a command for Docker.")
@click.option("--kubernetes", "form", flag_value="kubernetes", help="Print a manifest.")
@click.option(
    "--seccomp",
    "form",
    flag_value="seccomp",
    help="Print a seccomp profile that allows io_uring; it needs no PATH.",
)
def config(
    path: str | None,
    capacity: str | None,
    kind: str,
    others: tuple[str, ...],
    l1_size_gb: float,
    huge_pages: bool,
    form: str | None,
) -> int:
    """Print how to start an LMCache server with a store of CAPACITY at PATH, and vLLM with that.

    CAPACITY is a size such as 500GiB, or 'all' of a block device.
    """
    if form == "seccomp":
        click.echo(json.dumps(seccomp_profile(), indent=2))
        return 0
    if path is None or capacity is None:
        raise click.UsageError("PATH and CAPACITY are needed, such as /mnt/nvme/kvring 500GiB")
    spec = _adapter(path, capacity, kind, others)
    command = _server_command(spec, l1_size_gb, huge_pages=huge_pages)
    if form == "json":
        click.echo(json.dumps(spec))
    elif form is not None:
        click.echo(_FORMS[form](Path(path).absolute(), command))
    else:
        click.echo(json.dumps(spec, indent=2))
        click.echo(f"\n{shlex.join(command)}")
        vllm = ["vllm", "serve", "MODEL", "--kv-transfer-config", json.dumps(_VLLM_TRANSFER)]
        click.echo(f"\n{shlex.join(vllm)}")
    if huge_pages:
        _tell_huge_pages(l1_size_gb)
    return 0


def _adapter(path: str, capacity: str, kind: str, others: tuple[str, ...]) -> dict[str, Any]:
    parameters: dict[str, Any] = {"path": str(Path(path).expanduser().absolute())}
    parameters["capacity"] = capacity
    for text in others:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongArguments(f"--option {text!r} has no '='; write --option NAME=VALUE")
        parameters[name] = _value(value)
    try:
        check_options(**parameters)
    except ConfigError as error:
        raise WrongArguments(str(error)) from error
    module_path, class_name = _ADAPTERS[kind]
    return {
        "type": kind,
        "module_path": module_path,
        "class_name": class_name,
        "adapter_params": parameters,
    }


def _value(text: str) -> Any:
    """Read a mapping or a number as JSON, and anything else as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _server_command(spec: dict[str, Any], l1_size_gb: float, *, huge_pages: bool) -> list[str]:
    command = ["lmcache", "server", "--l1-size-gb", f"{l1_size_gb:g}", "--eviction-policy", "LRU"]
    if huge_pages:
        command += ["--l1-use-hugepages", "--no-l1-use-lazy", "--shm-name", ""]
    return [*command, "--l2-adapter", json.dumps(spec)]


def _tell_huge_pages(l1_size_gb: float) -> None:
    count = round(l1_size_gb * (1 << 30)) // (2 << 20) + 1
    print(
        f"kvring config: before the server starts: sysctl vm.nr_hugepages={count}", file=sys.stderr
    )
