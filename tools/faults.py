"""The fault table: kills, crashes, closes, pairs, damage and faults of every transfer, counted up.

`python -m tools faults` runs a share of each kind; `-- --goal` goes on until the goals are
reached. tools/fault_table.json keeps the counts over all versions of the code, and each run
goes on with seeds that none before it had. What a run finds is a finding, and stands in the table
for good.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.planted import built_in, find_where_told
from tools.tool import OUTPUT, REPOSITORY, BuildError, Options, Report, call

TABLE: Final = REPOSITORY / "tools" / "fault_table.json"
_SUITES: Final = ("damage::", "hostile_index::", "nth_fault::", "files_faults::")
_PROGRAMS: Final = ("faults", "opening")
# Nothing is done with the table while fewer seconds than these are left for a portion.
_LEAST_S: Final = 5.0
# A planted bug is searched for in so many portions.
_PLANTED_PORTIONS: Final = 20

_WRITING: Final = threading.Lock()

Row = dict[str, int]


@dataclass(frozen=True)
class _Kind:
    """A kind of fault.

    Attributes:
        goal: How many there are to be.
        portion: How many one command does.
        command: The command of a portion, by its number and its first seed.
    """

    goal: int
    portion: int
    command: Callable[[int, int], list[str]]


def _kills(portion: int, seed: int) -> list[str]:
    """Return a portion of kills, in each layout in turn, on one path or two."""
    turn = seed // portion
    paths = str(1 + turn // 2 % 2)
    layout = ("extents", "files")[turn % 2]
    words = ["--rounds", str(portion), "--seed", str(seed * 1000), "--paths", paths]
    return ["kill_harness", *words, "--layout", layout]


def _crashes(portion: int, seed: int) -> list[str]:
    return ["crash_simulator", "--crashes", str(portion), "--seed", str(seed), "--threads", "1"]


def _closes(portion: int, seed: int) -> list[str]:
    return ["close_harness", "--closes", str(portion), "--seed", str(seed)]


def _pairs(portion: int, seed: int) -> list[str]:
    return ["pair_harness", "--lives", str(portion), "--seed", str(seed)]


_KINDS: Final = {
    "kills": _Kind(5_000, 50, _kills),
    "crashes": _Kind(1_000_000, 2_000, _crashes),
    "closes": _Kind(50_000, 500, _closes),
    "pairs": _Kind(10_000, 50, _pairs),
}
# What a harness says where something is wrong: the column in which it counts.
_COLUMNS: Final = (
    ("failed_opens", re.compile(r"open failed|did not open|unexpected damage|not in use")),
    ("wrong", re.compile(r"neither of the versions|wrong bytes|checksum|touched after")),
    ("lost", re.compile("")),
)


def run(options: Options) -> Report:
    """Run portions of each kind until the time is up, or the goals are reached."""
    if options.planted:
        return find_where_told("faults", options, _find)
    report = Report()
    table = _read()
    has_goal = "--goal" in options.arguments
    built = _build(REPOSITORY)
    end_s = time.monotonic() + options.seconds
    for name in _KINDS:
        _row(table, name)
    if not has_goal or "suites" not in table:
        _run_suites(table, report)

    def is_over(name: str) -> bool:
        if has_goal:
            return _row(table, name)["count"] >= _KINDS[name].goal
        return time.monotonic() > end_s - _LEAST_S

    def run_kind(name: str) -> None:
        while not report.findings and not is_over(name):
            _run_portion(name, built, table, report)
            _write(table)

    # Side by side: kills and closes mostly wait for the disk.
    with ThreadPoolExecutor(len(_KINDS)) as threads:
        for _ in threads.map(run_kind, _KINDS):
            pass
    report.ran = ", ".join(f"{_row(table, name)['count']:,} {name}" for name in table)
    for name, row in table.items():
        goal = f" of {_KINDS[name].goal:,}" if name in _KINDS else ""
        bad = ", ".join(f"{row[column]} {column}" for column, _ in _COLUMNS)
        print(f"{name}: {row['count']:,}{goal}; {bad}")
    return report


def _build(tree: Path) -> Path:
    """Build the harnesses of a tree. Returns where they are."""
    log, environment = OUTPUT / "faults-build.log", _environment(tree)
    examples = [
        word for kind in ("kill", "close", "pair") for word in ("--example", f"{kind}_harness")
    ]
    examples += ["--example", "crash_simulator"]
    command = ["cargo", "build", "--release", *examples]
    if call(command, log=log, directory=tree, environment=environment).returncode != 0:
        raise BuildError(f"the harnesses do not build: see {log}")
    return built_in(OUTPUT / "faults", tree) / "release" / "examples"


def _environment(tree: Path) -> dict[str, str]:
    """Return what a tree is built with: quick, with assertions, and without minutes of linking."""
    return {
        "CARGO_TARGET_DIR": str(built_in(OUTPUT / "faults", tree)),
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
        "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS": "true",
        "CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS": "true",
    }


def _find(where: tuple[str, ...], tree: Path) -> Report:
    """Search a tree with a bug in it, beside the table.

    Args:
        where: A kind, and the arguments of its harness if they are not those of its portions.
        tree: Where it is.
    """
    report, table, built = Report(), dict[str, Row](), _build(tree)
    name, *arguments = where
    for _ in range(1 if arguments else _PLANTED_PORTIONS):
        if not report.findings:
            _run_portion(name, built, table, report, arguments)
    report.ran = ", ".join(f"{row['next_seed'] - 1:,} {name}" for name, row in table.items())
    return report


def _run_portion(
    name: str, built: Path, table: dict[str, Row], report: Report, given: Sequence[str] = ()
) -> None:
    """Run a portion of a kind, or what the given arguments say, and note it in a table."""
    kind, row = _KINDS[name], _row(table, name)
    program, *arguments = kind.command(kind.portion, row["next_seed"])
    arguments = list(given) or arguments
    done = call([built / program, *arguments], log=OUTPUT / f"faults-{name}.log")
    row["next_seed"] += kind.portion
    if done.returncode == 0:
        row["count"] += int(done.stdout.split()[0])
    else:
        said = done.stdout.strip().splitlines()
        line = next((one for one in said if "seed" in one), said[-1] if said else "no message")
        row[next(column for column, pattern in _COLUMNS if pattern.search(line))] += 1
        again = " ".join([program, *arguments])
        report.findings.append(f"{name}: {line}; cargo run --release --example {again}")


def _run_suites(table: dict[str, Row], report: Report) -> None:
    """Damage at every bit, a fault of each transfer in turn: exhaustive, so not counted up."""
    words = [word for program in _PROGRAMS for word in ("--test", program)]
    log = OUTPUT / "faults-suites.log"
    command = ["cargo", "test", "--release", *words, "--", *_SUITES]
    done = call(command, log=log, environment=_environment(REPOSITORY))
    row = _row(table, "suites")
    row["count"] = sum(int(count) for count in re.findall(r"ok\. (\d+) passed", done.stdout))
    if done.returncode != 0:
        row["wrong"] += 1
        report.findings.append(f"a suite of faults failed: {log}")
    _write(table)


def _row(table: dict[str, Row], name: str) -> Row:
    empty = {"count": 0, "next_seed": 1, **{column: 0 for column, _ in _COLUMNS}}
    return table.setdefault(name, empty)


def _read() -> dict[str, Row]:
    try:
        table: dict[str, Row] = json.loads(TABLE.read_text())
    except FileNotFoundError:
        table = {}
    return table


def _write(table: dict[str, Row]) -> None:
    # Whole or not at all: a run may be stopped at any moment.
    with _WRITING:
        beside = TABLE.with_suffix(".new")
        beside.write_text(json.dumps(table, indent=2) + "\n")
        beside.replace(TABLE)
