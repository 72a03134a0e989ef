"""Change the code in each way that cargo-mutants knows, and see whether a test notices.

All mutants are in one build, each behind a switch that is read at run time. Each test runs once
without a mutant, and tells which it reaches: only these run against a mutant, the quickest first.

`tools/mutants.json` keeps what was found, per file, with a fingerprint of its code. A file is
searched again when its code has changed. A survivor needs a reason there, or it is a finding. CI
(`--quick`) looks at files alone that are new, or were searched to the end and have changed since.

ARGUMENTS are files to search whether or not they changed; `survivors` searches only what survived
without a reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.mutation.build import prepare, python_suites, suites, units
from tools.mutation.listing import Mutant, fingerprint, is_promise, mutants, searched_files
from tools.mutation.suites import WORKERS, Tests
from tools.planted import patches_of, tree_with
from tools.tool import REPOSITORY, Options, Report

_File = dict[str, Any]

_KEPT = REPOSITORY / "tools" / "mutants.json"
_UNNOTICED = ("survived", "unreached")
_NOTHING: Final[_File] = {
    "code": "",
    "caught": 0,
    "timeout": 0,
    "not built": 0,
    "survivors": {},
    "left": {},
}


@dataclass(frozen=True)
class _Stage:
    """Tests that are asked about a mutant, if none of the stages before has noticed it.

    Attributes:
        build: Builds their programs, which it returns by name.
        before: What is known of a mutant that comes to this stage.
        most_s: How long the tests take without a mutant that are asked about one, the quickest
            of those that reach it: more where promises are at stake.
    """

    build: Callable[[], dict[str, Path]]
    before: str
    most_s: dict[bool, float]


_STAGES = (
    _Stage(units, "", {True: 30, False: 30}),
    _Stage(suites, "not by unit tests", {True: 400, False: 30}),
    _Stage(python_suites, "not by suites in Rust", {True: 120, False: 60}),
)


def run(options: Options) -> Report:
    """Search files that changed, or show that a test that is taken away is missed."""
    if options.planted:
        return _planted(options)
    arguments = options.arguments
    if options.quick and not arguments:
        arguments = tuple(_changed())
        if not arguments:
            return Report("no file is new or has changed that was searched to the end")
    results = _Results(REPOSITORY, is_kept=True)
    if unknown := set(arguments) - results.files - {"survivors"}:
        return Report("nothing", [_not_searched(name) for name in sorted(unknown)])
    wanted = results.wanted(arguments)
    report = Report()
    outcomes = _search(REPOSITORY, results, wanted, options.seconds, report)
    report.findings += [f"no test notices it: {place}" for place in results.unexplained()]
    missing = len(wanted) - len(outcomes)
    report.ran = (
        f"{len(wanted)} of {len(results.mutants)} mutants not searched yet: {_counts(outcomes)}"
        + (f"; no time for {missing}" if missing else "")
    )
    return report


def _known() -> dict[str, _File]:
    known: dict[str, _File] = json.loads(_KEPT.read_text()) if _KEPT.exists() else {}
    return known


def _changed() -> list[str]:
    """Files that are new, or were searched to the end and have other code now."""
    known = _known()
    return [
        file
        for file in searched_files()
        if (entry := known.get(file, _NOTHING))["code"] != fingerprint(REPOSITORY / file)
        and not entry["left"]
    ]


def _not_searched(name: str) -> str:
    return (
        f"{name}: no file that is searched for mutants; name one as src/index/file/table.rs, of "
        "tools/mutation/listing.py, or say 'survivors'"
    )


def _counts(outcomes: dict[Mutant, str]) -> str:
    counts = Counter(outcomes.values())
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none"


class _Results:
    """What is known of all mutants of a tree.

    For each file: how many are caught, time out or cannot be built, why survivors are accepted (no
    reason: not yet), and which are left to search, with what is known of them.
    """

    def __init__(self, tree: Path, *, is_kept: bool) -> None:
        """Of a tree; what is found out is kept if so."""
        self.mutants = mutants(tree)
        self._is_kept = is_kept
        self._names: dict[str, list[str]] = defaultdict(list)
        for one in self.mutants:
            self._names[one.file].append(one.name)
        known = _known()
        self._files: dict[str, _File] = {}
        for file in self._names:
            code = fingerprint(tree / file)
            old = known.get(file, _NOTHING)
            self._files[file] = (
                {"left": {}, **old} if old["code"] == code else self._new(file, code)
            )
            self._files[file]["reasons"] = {
                name: why for name, why in old["survivors"].items() if why
            }

    @property
    def files(self) -> set[str]:
        """Those that have mutants."""
        return set(self._names)

    def _new(self, file: str, code: str) -> _File:
        return {**deepcopy(_NOTHING), "code": code, "left": dict.fromkeys(self._names[file], "")}

    def wanted(self, arguments: tuple[str, ...]) -> list[Mutant]:
        """Return what is to be searched. What arguments name is begun anew."""
        again = arguments == ("survivors",)
        for file in arguments if not again else ():
            kept = self._files[file]
            self._files[file] = {**self._new(file, kept["code"]), "reasons": kept["reasons"]}
        wanted = []
        for one in self.mutants:
            entry = self._files[one.file]
            if again and entry["survivors"].get(one.name) == "":
                del entry["survivors"][one.name]
                entry["left"][one.name] = ""
                wanted.append(one)
            elif not again and one.name in entry["left"] and one.file in (arguments or self._files):
                wanted.append(one)
        return wanted

    def known_of(self, mutant: Mutant) -> str | None:
        """Return what is known of one that is left to search; None of others."""
        known: str | None = self._files[mutant.file]["left"].get(mutant.name)
        return known

    def reason(self, mutant: Mutant) -> str:
        """Return why it may survive; empty if there is no reason."""
        reason: str = self._files[mutant.file]["reasons"].get(mutant.name, "")
        return reason

    def note(self, mutant: Mutant, outcome: str) -> None:
        """Remember an outcome, also for the next run: a search that is ended loses nothing."""
        entry = self._files[mutant.file]
        entry["left"].pop(mutant.name, None)
        if outcome in _UNNOTICED:
            entry["survivors"][mutant.name] = self.reason(mutant)
        elif outcome in _NOTHING:
            entry[outcome] += 1
        else:
            entry["left"][mutant.name] = outcome
        if self._is_kept:
            self._write()

    def _write(self) -> None:
        kept = {}
        for file, entry in self._files.items():
            if len(entry["left"]) < len(self._names[file]):
                kept[file] = {name: value for name, value in entry.items() if name != "reasons"}
        text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
        beside = _KEPT.with_suffix(".new")
        beside.write_text(text)
        beside.replace(_KEPT)

    def unexplained(self) -> list[str]:
        """Return survivors without a reason: those of the promises first."""
        return [
            one.place
            for one in self.mutants
            if self._files[one.file]["survivors"].get(one.name) == ""
        ]


def _search(
    tree: Path,
    results: _Results,
    wanted: list[Mutant],
    most_s: float,
    report: Report,
    stages: tuple[_Stage, ...] = _STAGES,
) -> dict[Mutant, str]:
    """Run tests against mutants until the time is over. Returns what became of each."""
    if not wanted:
        return {}
    left_out = set(prepare(tree, results.mutants))
    tests = Tests()
    outcomes = {one: "not built" for one in wanted if one in left_out}
    for mutant in outcomes:
        results.note(mutant, "not built")
    deadline = time.monotonic() + most_s

    def search(stage: int, programs: set[str], to_run: list[Mutant]) -> None:
        def outcome_of(mutant: Mutant) -> str | None:
            if time.monotonic() > deadline:
                return None
            most_s = stages[stage].most_s[is_promise(mutant.file)]
            return tests.notice(mutant.number, programs, most_s)

        with ThreadPoolExecutor(WORKERS) as threads:
            for mutant, outcome in zip(to_run, threads.map(outcome_of, to_run), strict=True):
                if outcome is None:
                    continue
                if outcome in _UNNOTICED and stage + 1 < len(stages):
                    results.note(mutant, stages[stage + 1].before)
                else:
                    results.note(mutant, outcome)
                    outcomes[mutant] = outcome
                    if outcome in _UNNOTICED:
                        print(f"{outcome}: {mutant.place}", flush=True)

    known: dict[int, dict[str, Path]] = {}
    # What is at stake first, to the end.
    for is_at_stake in (True, False):
        for number, stage in enumerate(stages):
            to_run = [
                one
                for one in wanted
                if is_promise(one.file) is is_at_stake and results.known_of(one) == stage.before
            ]
            if not to_run or time.monotonic() > deadline:
                continue
            if number not in known:
                known[number] = stage.build()
            tests.look_at(known[number], deadline)
            search(number, set(known[number]), to_run)
    report.findings += [f"it fails without a mutant: {test}" for test in tests.failing]
    return outcomes


def _planted(options: Options) -> Report:
    """Take unit tests away: the mutants that only they notice must survive the others."""
    report, found = Report(), 0
    patches = patches_of("mutants")
    for patch in patches:
        with tree_with(patch) as tree:
            results = _Results(tree, is_kept=False)
            lines = patch.read_text().splitlines()
            changed = {line[6:] for line in lines if line.startswith("+++ b/")}
            wanted = results.wanted(tuple(changed & results.files))
            outcomes = _search(tree, results, wanted, options.seconds, report, _STAGES[:1])
        missed = [
            one.name
            for one, outcome in outcomes.items()
            if outcome in _UNNOTICED and not results.reason(one)
        ]
        print(f"{patch.stem}: {len(missed)} survive: {'; '.join(missed)}")
        found += bool(missed)
        if not missed:
            report.findings.append(f"not found: {patch.stem}")
    report.ran = f"{found} of {len(patches)} planted"
    return report
