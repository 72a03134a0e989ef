"""metrics.md: what a store reports, with the names of a live one."""

import ast
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client.core import Metric

import kvring
from kvring.metrics import SOURCES, StoreCollector
from kvring.shared_tier.metrics import collector as shared_tiers
from tools.reference.markdown import linked, sections, table
from tools.reference.rust import doc_comments, source

__all__ = ["page"]

_STATS: Final = "src/stats.rs"
_VLLM: Final = "connector_py/kvring/vllm/metrics.py"
_INTRODUCTION: Final = """
A name ends with its unit; without one it counts keys, or what the meaning says. Counters start at
the open.

## Metrics

With prometheus_client installed, each open store registers in the default registry, which LMCache's
`/metrics` prints. All have the label `store`, the first path. The last column has the name in
[stats()](#counters-in-stats), one for each value of a label, or the meaning.
"""
_SHARED: Final = """
## Metrics of a shared tier

LMCache's `/status` has them under `shared_tier`, without `kvring_shared_` and `_total`.
"""
_OF_VLLM: Final = """
## Metrics in vLLM

vLLM has these of its kvring tier, with the label `path`.
"""
_LATENCIES: Final = """
## Latencies in stats()

`get_`, `set_` or `delete_`; a phase; `_us_p50`, `_p90`, `_p99` or `_max`: such as
`get_total_us_p99`. Phase `wait` ends when the first transfer starts, `device` when the last one
ends; `total` is all until the answer, or until the extent of a DELETE is free.
"""
_COUNTERS: Final = """
## counters()

`counters()` has numbers of `stats()` under other names, in three groups.
"""
_PATHS: Final = """
## Of each path

`stats()["paths"]` has a dict for each path, in the order given.
"""
_RECOVERY: Final = """
## After a crash

`recovery` is the result of the open. No action is needed.
"""
_IS_LATENCY: Final = re.compile(r"(get|set|delete)_(wait|device|total)_us_(p50|p90|p99|max)")


def page() -> str:
    """Return the page."""
    with (
        tempfile.TemporaryDirectory() as path,
        kvring.Connector(path, "16MiB") as store,
    ):
        stats, recovery, groups = store.stats(), store.recovery, store.counters()
        collector = StoreCollector()
        collector.add(store)
        families = list(collector.collect())
    (one_path,) = stats["paths"]
    counters = doc_comments(_STATS, "\ncounters! {")
    texts = doc_comments(_STATS, "pub struct PathStats {", is_macro=True)
    geometry = doc_comments("src/store/geometry.rs", "pub struct Geometry {")
    geometry["direct_io"] = geometry.pop("direct")
    state = {
        **doc_comments(_STATS, "pub struct Stats {"),
        **doc_comments(_STATS, "\npath_stats! {\n"),
        "engine": texts["engine"],
        **{name: geometry[name] for name in ("direct_io", "memory_alignment_bytes")},
    }
    of_path = {name: one for name, one in texts.items() if name not in state}
    latencies = {name for name in stats if _IS_LATENCY.fullmatch(name)}
    assert counters.keys() <= stats.keys()
    return sections(
        "Metrics and counters",
        _INTRODUCTION,
        _metrics(families),
        _SHARED,
        _metrics(shared_tiers.collect()),
        _OF_VLLM,
        table(("metric", "in stats(), or meaning"), _metrics_of_vllm(stats)),
        "## Counters in stats()",
        _described(counters, counters),
        _COUNTERS,
        _aliases(groups),
        "## State in stats()",
        _described(state, stats.keys() - latencies - counters.keys() - {"paths"}),
        _LATENCIES,
        _PATHS,
        _described(of_path, one_path.keys() - state.keys()),
        f"Also, as in `stats()`: {_names(name for name in one_path if name in state)}.",
        "`write_streams` has a dict for each stream:",
        _described(doc_comments(_STATS, "pub struct StreamUse {")),
        "## Geometry\n\nNone is unknown, as on tmpfs, overlayfs and btrfs.",
        _described(geometry, one_path["geometry"]),
        _RECOVERY,
        _described(doc_comments("src/index/recovery/report.rs", "pub struct Recovery {"), recovery),
    )


def _described(meanings: dict[str, str], names: Iterable[str] | None = None) -> str:
    """Return a table of the names, in the order of the code; each must have a meaning."""
    wanted = set(meanings if names is None else names)
    assert wanted <= meanings.keys(), f"without a description: {wanted - meanings.keys()}"
    rows = [(f"`{name}`", meaning) for name, meaning in meanings.items() if name in wanted]
    return linked(table(("name", "meaning"), rows))


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _metrics(families: Iterable[Metric]) -> str:
    """Return a table of metrics, by what they have of stats(), or else by their help."""
    rows = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = _names(label for label in _labels(family) if label != "store")
        found = SOURCES.get(family.name)
        meaning = f"`{found}`" if isinstance(found, str) else family.documentation
        if isinstance(found, dict):
            meaning = ", ".join(f"{value}=`{source}`" for value, source in found.items())
        kind = f" ({family.type})" if family.type in ("histogram", "summary") else ""
        rows.append((f"`{name}`", labels, f"{meaning}{kind}"))
    if not any(labels for _, labels, _ in rows):
        return table(("metric", "meaning"), [(name, text) for name, _, text in rows])
    return table(("metric", "labels", "in stats(), or meaning"), rows)


def _labels(family: Any) -> Iterator[str]:
    yield from family._labelnames  # noqa: SLF001 - a family without samples tells them nowhere else


def _metrics_of_vllm(stats: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Return its metrics. The module itself needs vLLM."""
    for node in ast.parse(source(_VLLM)).body:
        name = ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else ""
        if name in ("_GAUGES", "_COUNTERS", "_HEALTHY"):
            assert isinstance(node, ast.AnnAssign)
            assert node.value is not None
            value = ast.literal_eval(node.value)
            total = "_total" if name == "_COUNTERS" else ""
            for metric, text, *sources in [value] if name == "_HEALTHY" else value:
                (found,) = [f"`{one}`" for one in sources if one in stats] or [text]
                yield f"`{metric}{total}`", found


def _aliases(groups: dict[str, dict[str, int]]) -> str:
    """Return the names of counters(), each with what of stats() `Stats::groups` makes it of."""
    body = source(_STATS).partition("pub fn groups(")[2].partition('[("storage')[0]
    found = re.findall(r'"(\w+)",\s*((?:of\("\w+"\)|[^"])*)', body)
    made_of = {
        name: " + ".join(f"`{one}`" for one in re.findall(r'(?:of\("|total\.)(\w+)', expression))
        for name, expression in found
    }
    assert all(made_of.values()), f"no counter is found for one of {made_of}"
    rows = [
        (group, f"`{name}`", made_of[name]) for group, names in groups.items() for name in names
    ]
    return table(("group", "name", "in stats()"), rows)
