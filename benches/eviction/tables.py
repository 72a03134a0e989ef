"""The tables of the page, as texts."""

from __future__ import annotations

from typing import Any

from benches.compare.tables import Table
from benches.eviction.results import (
    BACKWARDS,
    BEHIND_MEMORY,
    BYTES,
    CHUNKS,
    EIGHT_SIZES,
    LRU,
    METRICS,
    ONE_SIZE,
    PLAIN,
    PREFIX,
    S3FIFO,
    Results,
    Setting,
)
from benches.eviction.traces import PUBLIC_TRACES

BLOCK_BYTES = 4096
_GIB = 1 << 30

SIZES = {ONE_SIZE: "all chunks of 1 MiB", EIGHT_SIZES: "chunks of 64 KiB to 8 MiB"}
WITHOUT_GHOST = "without ghost"
CASES: dict[str, dict[str, Any]] = {
    "first chunk first": PLAIN,
    "last chunk first": BACKWARDS,
    "behind a cache in memory": BEHIND_MEMORY,
}


def traces_table(results: Results) -> Table:
    """Return what was played."""
    rows = [
        [
            trace.name,
            f"{trace.requests:,}",
            f"{trace.lookups:,}",
            f"{trace.chunks:,}",
            *(f"{trace.footprint_blocks[sizes] * BLOCK_BYTES / _GIB:.1f}" for sizes in SIZES),
            percent(trace.unbounded()),
        ]
        for trace in results.traces
    ]
    footprints = [f"GiB, {text}" for text in SIZES.values()]
    header = ["trace", "requests", "lookups", "chunks", *footprints, "held without bound"]
    return Table("Traces", header, rows)


def ranking_table(results: Results, case: str) -> Table:
    """Return the mean of the ratio to the best, by each hit ratio, best policy first."""
    settings = results.settings(**CASES[case])
    public = [one for one in settings if one.trace in {trace.name for trace in PUBLIC_TRACES}]
    by_metric = {
        metric: {rank.policy: rank for rank in results.ranking(settings, metric)}
        for metric in METRICS
    }
    rows = [
        [
            policy,
            *(f"{by_metric[metric][policy].mean:.3f}" for metric in METRICS),
            f"{by_metric[PREFIX][policy].worst:.3f}",
            f"{results.rank(public, PREFIX, policy).mean:.3f}" if public else "",
            f"{by_metric[PREFIX][policy].best_in} of {len(settings)}",
        ]
        for policy in by_metric[PREFIX]
    ]
    header = ["policy", *METRICS.values(), "worst case", "traces of others", "best in"]
    return Table(f"Ratio to the best, mean of {len(settings)}: {case}", header, rows)


def ratio_table(results: Results, trace: str, sizes: str, metric: str) -> Table:
    """Return one hit ratio of one trace by size of the cache and policy."""
    settings = results.settings(trace=trace, sizes=sizes, **PLAIN)
    rows = [[f"1/{setting.fraction}", *_ratios(results, setting, metric)] for setting in settings]
    title = f"{trace}, {SIZES[sizes]}: {METRICS[metric]}"
    return Table(title, ["cache", *results.policies], rows)


def _ratios(results: Results, setting: Setting, metric: str) -> list[str]:
    ratios = [results.ratio(setting, policy, metric) for policy in results.policies]
    return [f"**{percent(one)}**" if one == max(ratios) else percent(one) for one in ratios]


def order_table(results: Results) -> Table:
    """Return what it brings to use a request's chunks from the last one on."""
    rows = []
    for policy in results.policies:
        means = [
            results.mean_ratio(results.settings(**case), policy, metric)
            for metric in (PREFIX, CHUNKS)
            for case in (PLAIN, BACKWARDS)
        ]
        rows.append([policy, *map(percent, means)])
    header = [
        f"{METRICS[metric]}, {order} chunk first"
        for metric in (PREFIX, CHUNKS)
        for order in ("first", "last")
    ]
    return Table("The order within a request", ["policy", *header], rows)


def ghost_table(results: Results) -> Table:
    """Return what it brings to remember evicted chunks."""
    rows = []
    for trace in results.traces:
        for fraction in dict.fromkeys(one.fraction for one in results.settings()):
            setting = Setting(trace.name, ONE_SIZE, fraction)
            rows.append(
                [
                    trace.name,
                    f"1/{fraction}",
                    percent(results.outcome(setting, S3FIFO).returning),
                    percent(results.ratio(setting, S3FIFO, PREFIX)),
                    percent(results.ratio(setting, S3FIFO, PREFIX, WITHOUT_GHOST)),
                    percent(results.ratio(setting, LRU, PREFIX)),
                ]
            )
    header = ["trace", "cache", "stores that return", "s3fifo", "s3fifo without ghost", "lru"]
    return Table("What is remembered of evicted chunks", header, rows)


def variants_table(results: Results) -> Table:
    """Return what S3-FIFO comes to with other small queues, beside the other policies."""
    settings, behind = results.settings(**PLAIN), results.settings(**BEHIND_MEMORY)
    tried = [(policy, "") for policy in results.policies]
    tried += [(S3FIFO, variant) for variant in results.variants]
    rows = []
    for policy, variant in tried:
        rank = results.rank(settings, PREFIX, policy, variant)
        rank_behind = results.rank(behind, PREFIX, policy, variant)
        by_trace = [
            results.mean_ratio(results.settings(trace=trace.name, **PLAIN), policy, PREFIX, variant)
            for trace in results.traces
        ]
        name = f"{policy}, {variant}" if variant else policy
        ranks = (rank.mean, rank.worst, rank_behind.mean, rank_behind.worst)
        rows.append([name, *map(percent, by_trace), *(f"{one:.3f}" for one in ranks)])
    compared = ["of the best policy", "worst case", "behind memory", "worst case"]
    header = ["", *(trace.name for trace in results.traces), *compared]
    return Table("S3-FIFO with other queues", header, rows)


def percent(share: float) -> str:
    """Return a share as text."""
    return f"{100 * share:.1f} %"


def all_ratio_tables(results: Results, trace: str) -> list[Table]:
    """Return the hit ratios of one trace."""
    return [
        ratio_table(results, trace, ONE_SIZE, PREFIX),
        ratio_table(results, trace, ONE_SIZE, CHUNKS),
        ratio_table(results, trace, EIGHT_SIZES, PREFIX),
        ratio_table(results, trace, EIGHT_SIZES, BYTES),
    ]
