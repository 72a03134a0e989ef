"""What a part came to, as JSON and as a table: target/bench/PART.json and PART.txt."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from benches.compare.harness.fio import fio_version
from benches.compare.harness.peers import versions
from benches.compare.harness.samples import METRICS, Sample, Spread, ratio, series
from benches.compare.harness.session import PartResult, Session
from benches.results import Section, machine_facts

# Whom all are compared with where no other peer is named: the better one in each round.
_REFERENCE_PREFIX = "fs_native"
_WIDTH = 200


def write(
    name: str, title: str, result: PartResult, session: Session, reference: str | None
) -> Section:
    """Write a part's results, print its table, and return it with its conditions."""
    directory = session.results_directory
    document = {
        "part": name,
        "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": {**versions(), "fio": fio_version()},
        "scale": asdict(session.scale),
        **asdict(result),
    }
    files = [directory / f"{name}.json", directory / f"{name}.txt"]
    files[0].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    table = table_of(title, result.samples, reference)
    with files[1].open("w", encoding="utf-8") as output:
        for console in (Console(width=_WIDTH), Console(file=output, width=_WIDTH)):
            console.print(table)
            for line in (*result.notes, *(f"skipped: {one}" for one in result.skipped)):
                console.print(line, highlight=False, markup=False)
    rounds = len({one.round_number for one in result.samples if one.round_number >= 0})
    device = ", ".join(f"{name}: {text}" for name, text in result.device.items())
    notes = [f"Alternating rounds: {rounds}; median (range). {device}", *result.notes]
    return Section(table, [*notes, *(f"skipped: {one}" for one in result.skipped)])


def table_of(title: str, samples: list[Sample], reference: str | None = None) -> Table:
    """Return a table with a row for each case and peer: medians, ranges, ratios."""
    peers = list(dict.fromkeys(one.peer for one in samples))
    references = [reference] if reference else [p for p in peers if p.startswith(_REFERENCE_PREFIX)]
    metrics = [metric for metric in METRICS if any(metric in one.values for one in samples)]
    if references:
        title += f". Ratio: to {reference or 'the better fs_native of the round'}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for text in ("", ""):
        table.add_column(text)
    for metric in metrics:
        table.add_column(METRICS[metric], justify="right")
        if references:
            table.add_column("ratio", justify="right")
    for case in dict.fromkeys(one.case for one in samples):
        for peer in peers:
            cells = [
                (
                    Spread.of(values.values()) if values else None,
                    ratio(samples, case, peer, references, metric),
                )
                for metric in metrics
                for values in [series(samples, case, peer, metric)]
            ]
            if any(value for value, _ in cells):
                texts = [one for pair in cells for one in (pair if references else pair[:1])]
                table.add_row(case, peer, *("" if one is None else str(one) for one in texts))
    return table
