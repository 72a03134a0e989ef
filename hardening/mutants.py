"""Change the code in each way that cargo-mutants knows, and see whether a test notices.

All mutants are in one build, each behind a switch that is read at run time. Each test runs once
without a mutant, and tells which it reaches: only these run against a mutant, the quickest first.

`hardening/mutants.json` keeps what was found, per file, with a fingerprint of its code. A file is
searched again when its code has changed. A survivor needs a reason there, or it is a finding.

ARGUMENTS are files to search whether or not they changed; `survivors` searches only what survived
without a reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hardening.mutation.build import BuildError, prepare, suites, units
from hardening.mutation.listing import Mutant, fingerprint, is_promise, mutants
from hardening.mutation.suites import WORKERS, Tests
from hardening.planted import patches_of, tree_with
from hardening.tool import OUTPUT, REPOSITORY, Options, Report

_KEPT = REPOSITORY / "hardening" / "mutants.json"
# Of files that are not searched whole yet: a search goes on where the last one ended.
_BEGUN = OUTPUT / "mutants-begun.json"
_UNNOTICED = ("survived", "unreached")
# No unit test notices it, and suites have not been asked yet.
_NOT_BY_UNITS = "not by unit tests"
# How long the tests take without it that are asked about one mutant, the quickest of those that
# reach it: in suites more where promises are at stake.
_UNITS_S = 8.0
_SUITES_S = {True: 60.0, False: 15.0}

_File = dict[str, Any]


def run(options: Options) -> Report:
    """Search files that changed, or show that a test that is taken away is missed."""
    if options.planted:
        return _planted(options)
    results = _Results(REPOSITORY, _BEGUN)
    wanted = [one for one in results.mutants if results.wants(one, options.arguments)]
    report = Report()
    try:
        outcomes = _search(REPOSITORY, results, wanted, options.seconds, report)
    except BuildError as error:
        return Report("nothing", [f"the build with all mutants fails: {error}"])
    results.write()
    report.findings += [f"no test notices it: {place}" for place in results.unexplained()]
    missing = len(wanted) - len(outcomes)
    report.ran = (
        f"{len(wanted)} of {len(results.mutants)} mutants not searched yet: {_counts(outcomes)}"
        + (f"; no time for {missing}" if missing else "")
    )
    return report


def _counts(outcomes: dict[Mutant, str]) -> str:
    counts = Counter(outcomes.values())
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none"


class _Results:
    """What is known of all mutants of a tree."""

    def __init__(self, tree: Path, begun: Path | None) -> None:
        """Of a tree, with the file that says what is begun, if that counts."""
        self._path = begun
        self.mutants = mutants(tree)
        files = {one.file for one in self.mutants}
        self._codes = {file: fingerprint(tree / file) for file in files}
        self._kept = _read(_KEPT)
        self._begun = _read(begun) if begun else {}

    def wants(self, mutant: Mutant, arguments: tuple[str, ...]) -> bool:
        """Whether a mutant is to be searched."""
        if arguments and arguments != ("survivors",):
            return mutant.file in arguments
        kept = self._entry(self._kept, mutant.file)
        if arguments or kept:
            survivors: dict[str, str] = kept.get("survivors", {})
            return survivors.get(mutant.name) == "" and bool(arguments)
        return self._begun_as(mutant) in (None, _NOT_BY_UNITS)

    def is_not_by_units(self, mutant: Mutant) -> bool:
        """Whether only suites may notice it."""
        return self._begun_as(mutant) == _NOT_BY_UNITS

    def _begun_as(self, mutant: Mutant) -> str | None:
        outcomes: dict[str, str] = self._entry(self._begun, mutant.file).get("outcomes", {})
        return outcomes.get(mutant.name)

    def _entry(self, files: dict[str, _File], file: str) -> _File:
        entry = files.get(file, {})
        return entry if entry.get("code") == self._codes[file] else {}

    def reasons(self, file: str) -> dict[str, str]:
        """Why survivors of a file are accepted: those that are have a reason."""
        survivors: dict[str, str] = self._kept.get(file, {}).get("survivors", {})
        return survivors

    def note(self, mutant: Mutant, outcome: str) -> None:
        """Remember an outcome, also for the next run."""
        entry = self._entry(self._begun, mutant.file)
        if not entry:
            entry = self._begun[mutant.file] = {"code": self._codes[mutant.file], "outcomes": {}}
        entry["outcomes"][mutant.name] = outcome
        kept = self._entry(self._kept, mutant.file)
        if outcome not in _UNNOTICED and mutant.name in kept.get("survivors", {}):
            del kept["survivors"][mutant.name]
            kept[outcome] += 1

    def save(self) -> None:
        """Write what is begun: a search that is ended loses little."""
        if self._path:
            self._path.write_text(json.dumps(self._begun))

    def write(self) -> None:
        """Write what is known of files whose mutants are all known."""
        self.save()
        names: dict[str, set[str]] = {file: set() for file in self._codes}
        for one in self.mutants:
            names[one.file].add(one.name)
        for file, code in self._codes.items():
            outcomes = self._entry(self._begun, file).get("outcomes", {})
            if names[file] <= set(outcomes) and _NOT_BY_UNITS not in outcomes.values():
                reasons = self.reasons(file)
                counts = Counter(outcomes.values())
                self._kept[file] = {
                    "code": code,
                    **{outcome: counts[outcome] for outcome in ("caught", "timeout", "not built")},
                    "survivors": {
                        name: reasons.get(name, "")
                        for name, outcome in outcomes.items()
                        if outcome in _UNNOTICED
                    },
                }
        kept = {file: entry for file, entry in self._kept.items() if file in self._codes}
        _KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")

    def unexplained(self) -> list[str]:
        """Return survivors without a reason: those of the promises first."""
        return [
            one.place
            for one in self.mutants
            if self._survives(one) and not self.reasons(one.file).get(one.name)
        ]

    def _survives(self, mutant: Mutant) -> bool:
        kept = self._entry(self._kept, mutant.file).get("survivors", {})
        return self._begun_as(mutant) in _UNNOTICED or mutant.name in kept


def _read(path: Path) -> dict[str, _File]:
    files: dict[str, _File] = json.loads(path.read_text()) if path.exists() else {}
    return files


def _search(
    tree: Path, results: _Results, wanted: list[Mutant], most_s: float, report: Report
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

    def search(programs: set[str], to_run: list[Mutant], *, is_last: bool) -> list[Mutant]:
        def outcome_of(mutant: Mutant) -> str | None:
            if time.monotonic() > deadline:
                return None
            most_s = _SUITES_S[is_promise(mutant.file)] if is_last else _UNITS_S
            return tests.notice(mutant.number, programs, most_s)

        left = []
        with ThreadPoolExecutor(WORKERS) as threads:
            for mutant, outcome in zip(to_run, threads.map(outcome_of, to_run), strict=True):
                if outcome in _UNNOTICED and not is_last:
                    left.append(mutant)
                    outcome = _NOT_BY_UNITS
                if outcome is not None:
                    results.note(mutant, outcome)
                    results.save()
                if outcome not in (None, _NOT_BY_UNITS):
                    outcomes[mutant] = outcome
                if is_last and outcome in _UNNOTICED:
                    print(f"{outcome}: {mutant.place}", flush=True)
        return left

    unit_programs = units()
    for name, program in unit_programs.items():
        tests.look_at(name, program)
    suite_programs: dict[str, Path] = {}
    # What is at stake first, to the end.
    for is_at_stake in (True, False):
        of_it = [one for one in wanted if is_promise(one.file) is is_at_stake]
        left = [one for one in of_it if results.is_not_by_units(one)]
        known = {*left, *left_out}
        left += search(
            set(unit_programs), [one for one in of_it if one not in known], is_last=False
        )
        if left and not suite_programs and time.monotonic() < deadline:
            suite_programs = suites()
        for name, program in suite_programs.items():
            if time.monotonic() < deadline:
                tests.look_at(name, program)
        if time.monotonic() < deadline:
            search(set(suite_programs), left, is_last=True)
    report.findings += [f"it fails without a mutant: {test}" for test in tests.failing]
    return outcomes


def _planted(options: Options) -> Report:
    """Take tests away: the mutants that only they notice must survive."""
    report, found = Report(), 0
    patches = patches_of("mutants")
    for patch in patches:
        with tree_with(patch) as tree:
            results = _Results(tree, None)
            lines = patch.read_text().splitlines()
            changed = {line[6:] for line in lines if line.startswith("+++ b/")}
            wanted = [one for one in results.mutants if one.file in changed]
            outcomes = _search(tree, results, wanted, options.seconds, report)
        missed = [
            one.name
            for one, outcome in outcomes.items()
            if outcome in _UNNOTICED and not results.reasons(one.file).get(one.name)
        ]
        print(f"{patch.stem}: {len(missed)} survive: {'; '.join(missed)}")
        found += bool(missed)
        if not missed:
            report.findings.append(f"not found: {patch.stem}")
    report.ran = f"{found} of {len(patches)} planted"
    return report
