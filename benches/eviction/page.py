"""docs/eviction.md, made from what the simulator says and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benches.compare.markdown import table_lines
from benches.compare.tables import Table
from benches.eviction.plots import RANKING, write_plots
from benches.eviction.results import PLAIN, PREFIX, S3FIFO, Results
from benches.eviction.tables import (
    CASES,
    all_ratio_tables,
    ghost_table,
    order_table,
    ranking_table,
    traces_table,
    variants_table,
)
from benches.eviction.traces import PUBLIC_TRACES

_INTRODUCTION = """# Eviction

What each policy finds, by simulation: the very code that evicts in kvring (`src/evict/`), without a
disk. Made by `make eviction`; edits are overwritten.

How to read it: a request looks up all chunks of its prompt, loads those up to the first one that is
missing, and stores that one and the rest. *Chunks up to the first miss* are what saves prefill, so
that ratio decides; *chunks* and *bytes* also count those found behind a miss. Caches start empty,
and what they lack at first counts. Their sizes are fractions of all the chunks that a trace has.
"""

_ORDER = """The tables above take the chunks of a request from the first one on. From the last one
on, within what is loaded and within what is stored, the beginning of a prefix stays longer than its
end, which is of no use without it. Means over all traces and sizes:
"""

_GHOST = """S3-FIFO remembers what it evicted, as many bytes as the cache has, and puts what returns
into its main queue at once. With chunks of 1 MiB; ratios are of chunks up to the first miss:
"""

_VARIANTS = """The small queue takes what is new; the paper gives it a tenth. Here are the mean
ratios of chunks up to the first miss, over all sizes, with other shares, and how each compares with
the best of the five policies as they are. A share chosen by the very traces that it is measured on
looks better than it is.
"""

_LIMITS = """
## What this does not say
- Three of the five traces are made by rule: whoever chose the rules chose who wins. Those of others
  are two, from one paper, of an hour and less. How long a session pauses between its turns decides
  most, and is made up.
- A request is over before the next one begins. Chunks that are being read, which cannot go, and
  SETs that are still on their way are left out.
- *Behind a cache in memory*: LMCache keeps what was used last in memory, here with LRU and an
  eighth of kvring's bytes. What is found there is no use of a chunk in kvring, but counts as found.
- Nothing restarts: the order after an open is not part of it.
"""


def write_page(results: Results, path: Path, images: Path) -> None:
    """Write the page and its plots.

    Args:
        results: All that was simulated.
        path: The page.
        images: Directory for the plots, below that of the page.
    """
    files = write_plots(results, images)
    relative = {name: file.relative_to(path.parent).as_posix() for name, file in files.items()}
    path.write_text("\n".join(page_lines(results, relative)) + "\n", encoding="utf-8")


def page_lines(results: Results, plots: dict[str, str]) -> Iterator[str]:
    """Return the page.

    Args:
        results: All that was simulated.
        plots: Files by trace, and that of the ranking.
    """
    yield _INTRODUCTION
    yield "## Which one"
    yield f"{verdict(results)}\n"
    for case in CASES:
        yield from _titled(ranking_table(results, case))
    yield f"![Ranking]({plots[RANKING]})\n"
    yield "## The traces"
    yield from table_lines(traces_table(results))
    yield ""
    yield from _abouts(results)
    for trace in results.traces:
        yield f"\n## {trace.name}"
        yield f"![{trace.name}]({plots[trace.name]})\n"
        for table in all_ratio_tables(results, trace.name):
            yield from _titled(table)
    yield "## The order within a request"
    yield _ORDER
    yield from table_lines(order_table(results))
    yield "\n## What is remembered of evicted chunks"
    yield _GHOST
    yield from table_lines(ghost_table(results))
    yield "\n## S3-FIFO with other queues"
    yield _VARIANTS
    yield from table_lines(variants_table(results))
    yield _LIMITS.rstrip()


def verdict(results: Results) -> str:
    """Return which policy should be the default."""
    settings = results.settings(**PLAIN)
    best, second, *_ = results.ranking(settings, PREFIX)
    text = (
        f"**{best.policy}** should be the default: by chunks up to the first miss it comes to "
        f"{best.mean:.3f} of the best policy on average, and to {best.worst:.3f} where it does "
        f"worst; {second.policy} comes to {second.mean:.3f} and {second.worst:.3f}."
    )
    variants = {one: results.rank(settings, PREFIX, S3FIFO, one) for one in results.variants}
    name = max(variants, key=lambda one: variants[one].mean)
    if variants[name].mean <= best.mean:
        return text
    return (
        f"{text} {S3FIFO} with a {name} would come to {variants[name].mean:.3f} and "
        f"{variants[name].worst:.3f}: see the end."
    )


def _titled(table: Table) -> Iterator[str]:
    yield f"**{table.title}**\n"
    yield from table_lines(table)
    yield ""


def _abouts(results: Results) -> Iterator[str]:
    public = {trace.name: trace.about for trace in PUBLIC_TRACES}
    for trace in results.traces:
        yield f"- {trace.name}: {trace.about or public.get(trace.name, 'a file')}"
