//! What a store tells of itself, as dicts.

use kvring::{Geometry, NamespaceUsage, PathStats, Recovery, Stats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dicts::dict_of;

/// What opening found.
pub(crate) fn recovery_dict<'py>(
    py: Python<'py>,
    recovery: &Recovery,
) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict_of!(py, recovery:
        clean_shutdown reset truncated kept to_verify torn unreadable_pages out_of_range overlapping
        duplicate expired moved stale orphans))
}

/// What the target asks of transfers; None for what cannot be told.
fn geometry_dict(py: Python<'_>, geometry: Geometry) -> PyResult<Bound<'_, PyDict>> {
    let all = dict_of!(py, geometry:
        memory_alignment_bytes offset_alignment_bytes logical_block_bytes physical_block_bytes
        optimal_io_bytes discard_granularity_bytes write_streams write_stream_bytes);
    all.set_item("direct_io", geometry.direct)?;
    Ok(all)
}

/// State and counters, flat but for what is at each path.
pub(crate) fn stats_dict(py: Python<'_>, stats: Stats) -> PyResult<Bound<'_, PyDict>> {
    let all = dict_of!(py, stats:
        engine open_s eviction_bonus admitted_share max_chunk_bytes in_flight set_queued_operations set_queued_bytes registered_bytes
        transfers_fixed io_threads shutdown_clean partial_flush);
    all.set_item("direct_io", stats.geometry.direct)?;
    all.set_item("memory_alignment_bytes", stats.geometry.memory_alignment_bytes)?;
    for (name, value) in stats.numbers() {
        all.set_item(name, value)?;
    }
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
    let all = dict_of!(py, path:
        in_use reason trouble stuck note last_error last_error_ms engine written_bytes);
    all.set_item("path", path.path.display().to_string())?;
    all.set_item("direct_io", path.geometry.direct)?;
    all.set_item("memory_alignment_bytes", path.geometry.memory_alignment_bytes)?;
    all.set_item("geometry", geometry_dict(py, path.geometry)?)?;
    let streams = path.write_streams.iter();
    let streams = streams.map(|one| Ok(dict_of!(py, one: stream content written_bytes)));
    all.set_item("write_streams", streams.collect::<PyResult<Vec<_>>>()?)?;
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
        let one = dict_of!(py, usage:
            keys allocated_bytes writing_keys remembered_keys quota_bytes);
        all.set_item(name, one)?;
    }
    Ok(all)
}
