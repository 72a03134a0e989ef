"""docs/benchmarks.md, made from the JSON alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches.compare import sections
from benches.compare.document import Document, samples_by_section
from benches.compare.goals import goals
from benches.compare.overview import OVERVIEW, QUESTIONS
from benches.compare.plots import write_plots
from benches.compare.reasons import REASONS, read_reasons, reason_lines
from benches.compare.samples import Samples
from benches.compare.tables import Table, goals_table, section_tables

_INTRODUCTION = """# Benchmarks

kvring beside what LMCache has for a local disk, and beside fio as the device's limit. Made by
`make bench-docs` from what `make bench` measured; edits are overwritten.

How to read it: medians of alternating rounds, with the range in brackets. MB = 1e6 bytes, GB = 1e9
bytes. CPU is user and system time of the whole process, kernel workers of loop devices not
included. A ratio is taken round by round, against the peer with the best median. One round before
the others warms up: kvring's places have been written once when it counts, as in a cache that is
full. All go past the page cache (O_DIRECT), with four batches in flight. Loaded bytes are compared
with what was stored in the first and the last round.
"""


def write_markdown(document: Document, path: Path, images: Path) -> None:
    """Write the page and its plots.

    Args:
        document: All that was measured.
        path: The page.
        images: Directory for the plots, below that of the page.
    """
    files = write_plots(document, images)
    relative = {
        name: [one.relative_to(path.parent).as_posix() for one in paths]
        for name, paths in files.items()
    }
    path.write_text("\n".join(_lines(document, relative)) + "\n", encoding="utf-8")


def _lines(document: Document, plots: dict[str, list[str]]) -> Iterator[str]:
    yield _INTRODUCTION
    if any(entry["settings"]["quick"] for entry in document["sections"].values()):
        yield "**Some of this comes from a quick run, with little data: not for conclusions.**\n"
    for plot in plots.get(OVERVIEW, []):
        question = QUESTIONS[Path(plot).stem]
        yield f"## {question}\n![{question}]({plot})\n"
    measured = samples_by_section(document)
    for name, entry in document["sections"].items():
        yield f"\n## {sections.TITLES[name]}"
        yield f"On {_device_text(entry['device'])}.\n"
        for table in section_tables(name, measured[name]):
            if table.title != sections.TITLES[name]:
                yield f"\n**{table.title.rpartition(': ')[2]}**\n"
            yield from table_lines(table)
        yield ""
        yield from (f"![{sections.TITLES[name]}]({plot})\n" for plot in plots.get(name, []))
        yield from (f"- {note}" for note in entry["notes"])
        yield from (f"- Skipped: {skipped}" for skipped in entry["skipped"])
    yield from _goals(measured)
    yield from _conditions(document)


def _goals(measured: dict[str, Samples]) -> Iterator[str]:
    listed = goals(measured)
    table = goals_table(listed)
    yield f"\n## {table.title}"
    yield from table_lines(table)
    yield from reason_lines(listed, read_reasons(REASONS.read_text(encoding="utf-8")))


def _device_text(device: dict[str, str]) -> str:
    facts = []
    if "file_system" in device:
        facts.append(f"{device['file_system']} ({device['mount_options']})")
    if "over" in device:
        facts.append(device["over"])
    return f"{device['name']}: {', '.join(facts)}"


def table_lines(table: Table) -> Iterator[str]:
    """Return a table as Markdown."""
    yield _row(table.header)
    yield "|" + "---|" * len(table.header)
    yield from (_row(row) for row in table.rows)


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _conditions(document: Document) -> Iterator[str]:
    yield "\n## Where and how it was measured"
    entries: dict[str, dict[str, Any]] = document["sections"]
    described: dict[str, list[str]] = {}
    for name, entry in entries.items():
        facts = {**entry["machine"], **entry["versions"]}
        facts.pop("load_average_1min", None)
        lines = "\n".join(f"- {fact.replace('_', ' ')}: {value}" for fact, value in facts.items())
        described.setdefault(lines, []).append(name)
    for lines, names in described.items():
        yield f"\n{', '.join(names)}:\n"
        yield lines
    yield "\n| part | measured at | load average before | rounds | seconds |"
    yield "|---|---|---|---|---|"
    for name, entry in entries.items():
        yield _row(
            [
                name,
                entry["measured_at"],
                str(entry["machine"]["load_average_1min"]),
                str(len({sample["round_number"] for sample in entry["samples"]})),
                str(entry["elapsed_s"]),
            ]
        )
    yield "\nCommands:\n"
    commands = [line for entry in entries.values() for line in entry["commands"].items()]
    for what, command in dict.fromkeys(commands):
        yield f"- {what}: `{command}`"
