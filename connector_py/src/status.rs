//! What a store tells of itself, as dicts.

use kvring::{Geometry, NamespaceUsage, PathStats, Recovery, Stats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What opening found.
pub(crate) fn recovery_dict<'py>(
    py: Python<'py>,
    recovery: &Recovery,
) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("clean_shutdown", recovery.clean_shutdown)?;
    all.set_item("reset", recovery.reset.as_deref())?;
    all.set_item("truncated", recovery.truncated)?;
    all.set_item("kept", recovery.kept)?;
    all.set_item("to_verify", recovery.to_verify)?;
    all.set_item("torn", recovery.torn)?;
    all.set_item("unreadable_pages", recovery.unreadable_pages)?;
    all.set_item("out_of_range", recovery.out_of_range)?;
    all.set_item("overlapping", recovery.overlapping)?;
    all.set_item("duplicate", recovery.duplicate)?;
    all.set_item("expired", recovery.expired)?;
    all.set_item("moved", recovery.moved)?;
    all.set_item("stale", recovery.stale)?;
    all.set_item("orphans", recovery.orphans)?;
    Ok(all)
}

/// What the target asks of transfers; None for what cannot be told.
fn geometry_dict(py: Python<'_>, geometry: Geometry) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("direct_io", geometry.direct)?;
    all.set_item("memory_alignment_bytes", geometry.memory_alignment_bytes)?;
    all.set_item("offset_alignment_bytes", geometry.offset_alignment_bytes)?;
    all.set_item("logical_block_bytes", geometry.logical_block_bytes)?;
    all.set_item("physical_block_bytes", geometry.physical_block_bytes)?;
    all.set_item("optimal_io_bytes", geometry.optimal_io_bytes)?;
    all.set_item("discard_granularity_bytes", geometry.discard_granularity_bytes)?;
    Ok(all)
}

/// State and counters, flat but for what is at each path.
pub(crate) fn stats_dict(py: Python<'_>, stats: Stats) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("engine", stats.engine.as_str())?;
    all.set_item("direct_io", stats.geometry.direct)?;
    all.set_item("memory_alignment_bytes", stats.geometry.memory_alignment_bytes)?;
    all.set_item("max_chunk_bytes", stats.max_chunk_bytes)?;
    for (name, value) in stats.numbers() {
        all.set_item(name, value)?;
    }
    all.set_item("in_flight", stats.in_flight)?;
    all.set_item("set_queued_operations", stats.set_queued_operations)?;
    all.set_item("set_queued_bytes", stats.set_queued_bytes)?;
    all.set_item("registered_bytes", stats.registered_bytes)?;
    all.set_item("transfers_fixed", stats.transfers_fixed)?;
    all.set_item("io_threads", stats.io_threads)?;
    all.set_item("shutdown_clean", stats.shutdown_clean)?;
    all.set_item("partial_flush", stats.partial_flush)?;
    for (name, value) in stats.latencies {
        all.set_item(name, value)?;
    }
    for (name, value) in stats.counters {
        all.set_item(name, value)?;
    }
    let paths: PyResult<Vec<_>> = stats.paths.iter().map(|path| path_dict(py, path)).collect();
    all.set_item("paths", paths?)?;
    Ok(all)
}

/// State of one path.
fn path_dict<'py>(py: Python<'py>, path: &PathStats) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("path", path.path.display().to_string())?;
    all.set_item("in_use", path.in_use)?;
    all.set_item("reason", &path.reason)?;
    all.set_item("trouble", &path.trouble)?;
    all.set_item("note", &path.note)?;
    all.set_item("last_error", &path.last_error)?;
    all.set_item("last_error_ms", path.last_error_ms)?;
    all.set_item("engine", &path.engine)?;
    all.set_item("direct_io", path.geometry.direct)?;
    all.set_item("memory_alignment_bytes", path.geometry.memory_alignment_bytes)?;
    all.set_item("geometry", geometry_dict(py, path.geometry)?)?;
    for (name, value) in path.numbers() {
        all.set_item(name, value)?;
    }
    Ok(all)
}

/// Counters by group.
pub(crate) fn counters_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, counters) in stats.groups() {
        let group = PyDict::new(py);
        for (name, value) in counters {
            group.set_item(name, value)?;
        }
        all.set_item(name, group)?;
    }
    Ok(all)
}

/// What namespaces take, by name.
pub(crate) fn usage_dict(
    py: Python<'_>,
    usage: Vec<(String, NamespaceUsage)>,
) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for (name, usage) in usage {
        let one = PyDict::new(py);
        one.set_item("keys", usage.keys)?;
        one.set_item("allocated_bytes", usage.allocated_bytes)?;
        one.set_item("writing_keys", usage.writing_keys)?;
        one.set_item("remembered_keys", usage.remembered_keys)?;
        one.set_item("quota_bytes", usage.quota_bytes)?;
        all.set_item(name, one)?;
    }
    Ok(all)
}
