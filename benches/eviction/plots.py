"""PNG plots, by matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benches.eviction.results import (
    BYTES,
    EIGHT_SIZES,
    METRICS,
    ONE_SIZE,
    PLAIN,
    PREFIX,
    Results,
    Trace,
)
from benches.eviction.tables import SIZES

_DOTS_PER_INCH = 110
RANKING = "ranking"


def write_plots(results: Results, directory: Path) -> dict[str, Path]:
    """Draw each trace, and the ranking.

    Args:
        results: What to draw.
        directory: Is made if it is missing.

    Returns:
        The files by the trace's name, and that of the ranking.
    """
    matplotlib = importlib.import_module("matplotlib")
    # No display is needed.
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    directory.mkdir(parents=True, exist_ok=True)
    figures = {trace.name: _hit_ratios(pyplot, results, trace) for trace in results.traces}
    figures[RANKING] = _ranking(pyplot, results)
    files = {}
    for name, drawn in figures.items():
        files[name] = directory / f"eviction-{name}.png"
        drawn.tight_layout()
        drawn.savefig(files[name], dpi=_DOTS_PER_INCH)
        pyplot.close(drawn)
    return files


def _hit_ratios(pyplot: Any, results: Results, trace: Trace) -> Any:
    drawn, panels = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for panel, sizes, metric in zip(panels, (ONE_SIZE, EIGHT_SIZES), (PREFIX, BYTES), strict=True):
        settings = results.settings(trace=trace.name, sizes=sizes, **PLAIN)
        for policy in results.policies:
            ratios = [100 * results.ratio(setting, policy, metric) for setting in settings]
            panel.plot(range(len(settings)), ratios, label=policy, marker="o", markersize=4)
        panel.set_xticks(range(len(settings)), [f"1/{setting.fraction}" for setting in settings])
        panel.set_title(f"{METRICS[metric]}; {SIZES[sizes]}", fontsize="medium")
        panel.set_xlabel("size of the cache, of all chunks")
        panel.set_ylabel("found, %")
        panel.set_ylim(bottom=0)
        panel.grid(visible=True, alpha=0.3)
    panels[0].axhline(100 * trace.unbounded(), color="grey", linestyle=":", label="without bound")
    panels[0].legend(fontsize="small")
    drawn.suptitle(trace.name)
    return drawn


def _ranking(pyplot: Any, results: Results) -> Any:
    drawn, panel = pyplot.subplots(figsize=(9, 4))
    settings = results.settings(**PLAIN)
    policies = [rank.policy for rank in results.ranking(settings, PREFIX)]
    width = 0.8 / len(METRICS)
    for number, (metric, text) in enumerate(METRICS.items()):
        means = {rank.policy: rank.mean for rank in results.ranking(settings, metric)}
        at = [place + number * width for place in range(len(policies))]
        panel.bar(at, [means[policy] for policy in policies], width, label=text)
    middle = width * (len(METRICS) - 1) / 2
    panel.set_xticks([place + middle for place in range(len(policies))], policies)
    panel.set_ylabel("hit ratio, of the best one's")
    panel.grid(visible=True, axis="y", alpha=0.3)
    panel.legend(loc="upper right", fontsize="small")
    drawn.suptitle("Mean over all traces, sizes of caches and sizes of chunks")
    return drawn
