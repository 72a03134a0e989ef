"""What `kvring bench` has measured, as a document and as a table."""

import json
from collections.abc import Callable
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvring import __version__
from kvring._native import BenchPlan

_FILE_WIDTH_COLUMNS = 120


def document(
    plan: BenchPlan,
    store_options: dict[str, Any],
    machine: dict[str, Any],
    report: dict[str, Any],
) -> dict[str, Any]:
    """Return all that is to be told of a run, with rates; units last in the names."""
    return {
        "kvring": __version__,
        "workload": {**plan.options, "keys": plan.keys},
        "store_options": store_options,
        "machine": machine,
        **{phase: _with_rates(report[phase]) for phase in ("measured", "fill", "check")},
        "interrupted": report["interrupted"],
        "errors": {
            "failed_keys": report["failed_keys"],
            "failed_batches": report["failed_batches"],
            "wrong_chunks": report["wrong_chunks"],
            "damaged_chunks": report["damaged_chunks"],
            "gave_up": report["gave_up"],
            "closed_in_order": report["closed_in_order"],
            "messages": report["messages"],
        },
        "has_errors": report["has_errors"],
        "store": report["store"],
    }


def print_json(result: dict[str, Any], file: TextIO) -> None:
    """Print the document."""
    json.dump(result, file, indent=2)
    file.write("\n")


def print_table(result: dict[str, Any], file: TextIO) -> None:
    """Print what matters of the document, to be read."""
    # What comes from outside (paths, messages) is no markup.
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(
            file=file, markup=False, highlight=False, emoji=False, width=_FILE_WIDTH_COLUMNS
        )
    if result["measured"] is not None:
        console.print(_figures(result["measured"]))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    for name, text in _facts(result):
        facts.add_row(name, text)
    console.print(facts)


def _with_rates(phase: dict[str, Any] | None) -> dict[str, Any] | None:
    if phase is None:
        return None
    elapsed_s, size_gb = phase["elapsed_s"], phase["bytes"] / 1e9
    cpu_s = phase["cpu_user_s"] + phase["cpu_system_s"]
    keys = sum(one["keys"] for one in phase["classes"].values())
    return {
        **phase,
        "cpu_s_per_gb": cpu_s / size_gb if size_gb else None,
        "cpu_us_per_op": cpu_s * 1e6 / keys if keys else None,
        "classes": {
            name: {
                "mb_per_s": one["bytes"] / 1e6 / elapsed_s,
                "ops_per_s": one["keys"] / elapsed_s,
                **one,
            }
            for name, one in phase["classes"].items()
        },
    }


def _figures(phase: dict[str, Any]) -> Table:
    classes: dict[str, dict[str, Any]] = phase["classes"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in classes:
        table.add_column(name, justify="right", no_wrap=True)

    def add(name: str, text: Callable[[dict[str, Any]], str], *, last: bool = False) -> None:
        table.add_row(name, *(text(one) for one in classes.values()), end_section=last)

    def latency(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda one: _duration(one["latency_us"][name])

    if phase["bytes"]:
        add("MB/s", lambda one: f"{one['mb_per_s']:,.1f}")
    add("ops/s", lambda one: f"{one['ops_per_s']:,.0f}", last=True)
    for name in ("p50", "p90", "p99", "p99.9", "max"):
        add(f"latency {name}", latency(name), last=name == "max")
    if {"get", "exists"} & classes.keys():
        for name in ("hits", "misses"):
            table.add_row(
                name,
                # The others have neither.
                *(
                    f"{one[name]:,}" if class_name in ("get", "exists") else "-"
                    for class_name, one in classes.items()
                ),
            )
    add("failed", lambda one: f"{one['failed']:,}")
    return table


def _facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    workload, store, machine = result["workload"], result["store"], result["machine"]
    facts = []
    if result["measured"] is not None:
        facts.append(("measured", _phase_text(result["measured"])))
        facts.append(("CPU", _cpu_text(result["measured"])))
    for name, meaning in (("fill", "filled"), ("check", "verified")):
        if result[name] is not None:
            facts.append((meaning, _phase_text(result[name])))
    shown = ("rw", "bs", "iodepth", "batch", "numjobs", "align", "keys")
    parts = [f"{name} {workload[name]}" for name in shown]
    if "rw" in workload["rw"]:
        parts.append(f"rwmixread {workload['rwmixread']}")
    parts += ["verify"] if workload["verify"] else []
    facts.append(("workload", ", ".join(parts)))
    direct = "direct I/O" if store["direct_io"] else "through the page cache"
    bounced = f", {store['bounced_bytes']:,} bytes bounced" if store["bounced_bytes"] else ""
    facts.append(("store", f"{store['engine']}, {direct}{bounced}"))
    if workload["registered"]:
        registered_bytes, transfers = store["registered_bytes"], store["transfers_fixed"]
        facts.append(("registered", f"{registered_bytes:,} bytes, {transfers:,} transfers inside"))
    cpus = f"{machine['cpu_count']} CPUs, load {machine['load_average_1min']}"
    facts.append(("machine", f"kernel {machine['kernel']}, {cpus}, {machine['file_system']}"))
    if result["interrupted"]:
        facts.append(("interrupted", "it was ended early; the figures are those until then"))
    if result["has_errors"]:
        facts += _error_facts(result["errors"])
    return facts


def _phase_text(phase: dict[str, Any]) -> str:
    keys = sum(one["keys"] for one in phase["classes"].values())
    size = f", {phase['bytes'] / 1e9:,.3f} GB" if phase["bytes"] else ""
    return f"{keys:,} keys{size} in {phase['elapsed_s']:.3f} s"


def _cpu_text(phase: dict[str, Any]) -> str:
    user_s, system_s = phase["cpu_user_s"], phase["cpu_system_s"]
    rate = (
        f"{phase['cpu_s_per_gb']:.3f} s/GB"
        if phase["cpu_s_per_gb"] is not None
        else f"{phase['cpu_us_per_op'] or 0:.2f} µs/op"
    )
    return f"{rate} (user {user_s:.3f} s, system {system_s:.3f} s)"


def _error_facts(errors: dict[str, Any]) -> list[tuple[str, str]]:
    parts = [
        f"{errors[name]:,} {meaning}"
        for name, meaning in (
            ("failed_keys", "keys failed"),
            ("wrong_chunks", "chunks wrong"),
            ("damaged_chunks", "chunks damaged"),
        )
        if errors[name]
    ]
    parts += [f"{count:,} batches {code}" for code, count in errors["failed_batches"].items()]
    parts += ["a job gave up"] if errors["gave_up"] else []
    parts += [] if errors["closed_in_order"] else ["the store was not closed in order"]
    return [("ERRORS", ", ".join(parts)), *(("", message) for message in errors["messages"])]


def _duration(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:,.2f} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds:.1f} µs"
