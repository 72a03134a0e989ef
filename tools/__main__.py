"""`python -m tools`: search for what breaks the promises, by one tool or by all of them."""

from __future__ import annotations

import importlib
import json
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

import click
from rich.console import Console
from rich.table import Table

from tools.planted import find_planted
from tools.tool import OUTPUT, BuildError, Options, Report


@dataclass(frozen=True)
class _Part:
    """A tool, the minutes that its search gets, and those in CI (0: it is left out)."""

    name: str
    minutes: float
    quick_minutes: float = 0
    runs_beside: bool = False
    """While the others run, one after the other."""
    is_in_all: bool = True


# In the order in which they run: what is quick to fail comes first. Beside these minutes it takes
# about 35 on two processors to build for all of them, the first time.
_PARTS = (
    _Part("soak", 60, runs_beside=True),
    _Part("supply-chain", 1, 1),
    _Part("models", 3, 0.7),
    _Part("miri", 3),
    _Part("sanitizers", 6),
    _Part("fuzz", 8, 0.75),
    _Part("stateful", 4, 0.5),
    _Part("faults", 5),
    _Part("scale", 3.5),
    # Of what a branch changes: on main there is nothing.
    _Part("mutants", 60, is_in_all=False),
)
# In which a tool must find a bug.
_PLANTED_MINUTES = 5.0


def _run(name: str, search: Callable[[Options], Report], options: Options) -> Report:
    began = time.monotonic()
    try:
        report = search(options)
    except BuildError as error:
        report = Report(broken=str(error))
    except Exception as error:  # noqa: BLE001
        # The others go on.
        traceback.print_exc()
        report = Report(findings=[f"it ended with {type(error).__name__}: {error}"])
    seconds = time.monotonic() - began
    OUTPUT.mkdir(parents=True, exist_ok=True)
    record = {**asdict(report), "options": asdict(options), "seconds": round(seconds, 1)}
    (OUTPUT / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    click.echo(f"{name}: {seconds:.0f} s, {report.broken or report.skipped or report.ran}")
    return report


def _search(part: _Part, options: Options) -> Report:
    module = importlib.import_module(f"tools.{part.name.replace('-', '_')}")
    return _run(part.name, module.run, options)


def _search_all(parts: dict[_Part, Options]) -> dict[str, Report]:
    reports = {}
    with ThreadPoolExecutor() as threads:
        beside = {
            part.name: threads.submit(_search, part, options)
            for part, options in parts.items()
            if part.runs_beside
        }
        for part, options in parts.items():
            if not part.runs_beside:
                reports[part.name] = _search(part, options)
                # In CI, which ends a run that takes long, and has to hear of it.
                if options.quick and reports[part.name].broken:
                    break
        return reports | {name: future.result() for name, future in beside.items()}


def _print(reports: dict[str, Report]) -> None:
    table = Table("tool", "ran", "found")
    for name, report in reports.items():
        found = f"skipped: {report.skipped}" if report.skipped else str(len(report.findings))
        table.add_row(name, report.ran, f"broken: {report.broken}" if report.broken else found)
    console = Console()
    console.print(table)
    for name, report in reports.items():
        for finding in report.findings:
            console.print(f"{name}: {finding}", markup=False, highlight=False, soft_wrap=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("tool", type=click.Choice([part.name for part in _PARTS] + ["all"]))
@click.argument("arguments", nargs=-1)
@click.option("--minutes", type=click.FloatRange(min=0), help="How long the search may take.")
@click.option("--seed", type=int, default=1, show_default=True, help="Where random choices begin.")
@click.option("--quick", is_flag=True, help="As short as in CI.")
@click.option("--planted", is_flag=True, help="Find known bugs that are put in, instead.")
def main(
    tool: str,
    arguments: tuple[str, ...],
    minutes: float | None,
    seed: int,
    quick: bool,
    planted: bool,
) -> None:
    """Search for what breaks kvring's promises. What TOOL takes as ARGUMENTS is in its file.

    The exit status is 1 if something was found, and 3 if what a tool runs does not build.
    """
    parts = {}
    for part in _PARTS:
        share = part.quick_minutes if quick else part.minutes
        share = share if minutes is None else minutes
        if tool == part.name or (tool == "all" and part.is_in_all and share > 0):
            parts[part] = Options(share, seed, quick, arguments)
    if planted:
        limit = _PLANTED_MINUTES if minutes is None else minutes
        options = Options(limit, seed, quick, arguments)
        reports = {
            part.name: _run(f"{part.name}-planted", partial(find_planted, part.name), options)
            for part in parts
        }
    else:
        reports = _search_all(parts)
    _print(reports)
    if any(report.broken for report in reports.values()):
        raise SystemExit(3)
    if any(report.findings for report in reports.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
