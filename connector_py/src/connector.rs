//! The class that LMCache loads.

use std::time::Duration;

use kvring::{Completion, KeepAlive, OpenError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyList};

use crate::buffers::{Use, export_all};
use crate::errors::{ConfigError, from_open, from_submit};
use crate::logging::hand_over;
use crate::options::config_from;

type Answer = (u64, bool, String, Vec<bool>);

/// A store of KV-cache chunks on a local disk, as LMCache's native_plugin adapter wants it.
#[pyclass(module = "kvring", frozen)]
pub(crate) struct Connector {
    core: kvring::Connector,
}

#[pymethods]
impl Connector {
    #[new]
    #[pyo3(signature = (path, capacity, **options))]
    fn new(
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        capacity: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let config = config_from(path, capacity, options)?
            .map_err(|error| from_open(OpenError::Config(error)))?;
        let core = py.detach(|| kvring::Connector::open(config)).map_err(from_open);
        hand_over(py)?;
        let core = core?;
        Ok(Self { core })
    }

    /// Descriptor to poll for reading: readable while completions wait.
    fn event_fd(&self) -> i32 {
        self.core.event_fd()
    }

    /// Store chunks. Returns the future id of the batch.
    fn submit_batch_set(
        &self,
        py: Python<'_>,
        keys: Vec<PyBackedStr>,
        memoryviews: &Bound<'_, PyList>,
    ) -> PyResult<u64> {
        let (exports, spans) = export_all(memoryviews, Use::Read)?;
        let keep_alive: KeepAlive = Box::new(exports);
        py.detach(|| self.core.submit_set(&keys, &spans, keep_alive)).map_err(from_submit)
    }

    /// Load chunks. Returns the future id of the batch.
    fn submit_batch_get(
        &self,
        py: Python<'_>,
        keys: Vec<PyBackedStr>,
        memoryviews: &Bound<'_, PyList>,
    ) -> PyResult<u64> {
        let (exports, spans) = export_all(memoryviews, Use::Fill)?;
        let keep_alive: KeepAlive = Box::new(exports);
        py.detach(|| self.core.submit_get(&keys, &spans, keep_alive)).map_err(from_submit)
    }

    /// Ask which keys are held. Returns the future id of the batch.
    fn submit_batch_exists(&self, py: Python<'_>, keys: Vec<PyBackedStr>) -> PyResult<u64> {
        py.detach(|| self.core.submit_exists(&keys)).map_err(from_submit)
    }

    /// Remove keys; True means "not here any more", also for a key that never was. Returns the future id of the batch.
    fn submit_batch_delete(&self, py: Python<'_>, keys: Vec<PyBackedStr>) -> PyResult<u64> {
        py.detach(|| self.core.submit_delete(&keys)).map_err(from_submit)
    }

    /// Completions since the last call: (future id, ok, error, one bool per key).
    fn drain_completions(&self, py: Python<'_>) -> Vec<Answer> {
        let mut completions = Vec::new();
        self.core.drain(&mut completions);
        if let Err(error) = hand_over(py) {
            // An exception out of here would make LMCache's demux thread spin, and the completions would be lost.
            error.write_unraisable(py, None);
        }
        // Dropping a completion releases its buffers, here, with the GIL held.
        completions.into_iter().map(answer).collect()
    }

    /// Finish or drop what is queued, release every buffer, mark the store as closed in order. Idempotent.
    #[pyo3(signature = (drain_timeout_s = None))]
    fn close<'py>(
        &self,
        py: Python<'py>,
        drain_timeout_s: Option<f64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let drain_timeout = match drain_timeout_s {
            None => self.core.config().drain_timeout,
            Some(seconds) if (0.0..=3600.0).contains(&seconds) => Duration::from_secs_f64(seconds),
            Some(seconds) => {
                let message =
                    format!("drain_timeout_s = {seconds} is not valid; it takes 0 to 3600");
                return Err(ConfigError::new_err(message));
            }
        };
        let shutdown = py.detach(|| self.core.close_within(drain_timeout));
        hand_over(py)?;
        let result = PyDict::new(py);
        result.set_item("shutdown_clean", shutdown.clean)?;
        result.set_item("partial_flush", shutdown.partial_flush)?;
        result.set_item("abandoned", shutdown.abandoned)?;
        Ok(result)
    }

    /// What opening found and threw out.
    #[getter]
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let recovery = self.core.recovery();
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
        Ok(all)
    }

    /// State and counters as one flat dict of numbers, strings and bools.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        hand_over(py)?;
        let stats = py.detach(|| self.core.stats());
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

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        py.detach(|| self.core.close());
        hand_over(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let config = self.core.config();
        let state = if self.core.is_closed() {
            "closed".to_owned()
        } else {
            let stats = py.detach(|| self.core.stats());
            format!("{} keys, {} bytes", stats.keys, stats.held_bytes)
        };
        format!(
            "kvring.Connector(path={:?}, capacity={}): {state}",
            config.path, config.capacity_bytes
        )
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        // Closing waits for the disk: other Python threads go on meanwhile.
        Python::attach(|py| py.detach(|| self.core.close()));
    }
}

fn answer(completion: Completion) -> Answer {
    (completion.future_id, completion.ok, completion.error.clone(), completion.results.clone())
}
