//! What a store tells of itself, as dicts.

use kvring::{NamespaceUsage, Recovery, Stats};
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
    all.set_item("orphans", recovery.orphans)?;
    Ok(all)
}

/// State and counters, flat.
pub(crate) fn stats_dict(py: Python<'_>, stats: Stats) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("engine", stats.engine)?;
    all.set_item("direct_io", stats.direct_io)?;
    all.set_item("memory_alignment_bytes", stats.memory_alignment_bytes)?;
    all.set_item("max_chunk_bytes", stats.max_chunk_bytes)?;
    all.set_item("keys", stats.keys)?;
    all.set_item("held_bytes", stats.held_bytes)?;
    all.set_item("records", stats.records)?;
    all.set_item("index_pages_lost", stats.index_pages_lost)?;
    all.set_item("allocated_bytes", stats.allocated_bytes)?;
    all.set_item("capacity_bytes", stats.capacity_bytes)?;
    all.set_item("used_bytes", stats.used_bytes)?;
    all.set_item("data_files", stats.data_files)?;
    all.set_item("leased_bytes", stats.leased_bytes)?;
    all.set_item("pinned_bytes", stats.pinned_bytes)?;
    all.set_item("discarded_at_open", stats.discarded_at_open)?;
    all.set_item("would_hit_at_1_5x", stats.would_hit_at_1_5x)?;
    all.set_item("would_hit_at_2x", stats.would_hit_at_2x)?;
    all.set_item("in_flight", stats.in_flight)?;
    all.set_item("set_queued_operations", stats.set_queued_operations)?;
    all.set_item("set_queued_bytes", stats.set_queued_bytes)?;
    all.set_item("io_threads", stats.io_threads)?;
    all.set_item("shutdown_clean", stats.shutdown_clean)?;
    all.set_item("partial_flush", stats.partial_flush)?;
    for (name, value) in stats.latencies {
        all.set_item(name, value)?;
    }
    for (name, value) in stats.counters {
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
