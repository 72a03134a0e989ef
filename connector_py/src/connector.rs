//! The class that LMCache loads.

use std::mem;
use std::time::Duration;

use kvring::{Completion, OpenError, StoreLimits, Variant};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffers::{Use, export_all, with_variants};
use crate::dicts::dict_of;
use crate::errors::{ConfigError, code_of, duration_of, from_limits, from_open, from_submit};
use crate::keys::Keys;
use crate::logging::hand_over;
use crate::memory::{RegisteredMemory, register};
use crate::options::{config_from, option_value};
use crate::status::{counters_dict, recovery_dict, stats_dict, usage_dict};

type Answer = (u64, bool, String, Vec<bool>);

/// The same with the code of the failure.
type CodedAnswer = (u64, Option<&'static str>, String, Vec<bool>);

/// Class, phase, cumulative buckets, count and sum.
type Histogram = (&'static str, &'static str, Vec<(u64, u64)>, u64, u64);

/// Keys with their states, and where to go on.
type KeyPage = (Vec<(String, &'static str)>, Option<usize>);

/// A store of KV-cache chunks on a local disk, as LMCache's native_plugin adapter wants it.
#[pyclass(module = "kvring", frozen, subclass)]
pub(crate) struct Connector {
    pub(crate) core: kvring::Connector,
    /// The option of this name.
    #[pyo3(get)]
    metrics_port: Option<u16>,
}

#[pymethods]
impl Connector {
    #[new]
    #[pyo3(
        signature = (path = None, capacity = None, *, _keeps_misplaced = false, _never_evicts = false, **options),
        text_signature = "(path, capacity, **options)"
    )]
    fn new(
        py: Python<'_>,
        path: Option<&Bound<'_, PyAny>>,
        capacity: Option<&Bound<'_, PyAny>>,
        _keeps_misplaced: bool,
        _never_evicts: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut config = config_from(py, path, capacity, options)?
            .map_err(|error| from_open(OpenError::Config(error)))?;
        config.keeps_misplaced = _keeps_misplaced;
        config.never_evicts = _never_evicts;
        let metrics_port = config.metrics_port;
        let core = py.detach(|| kvring::Connector::open(config)).map_err(from_open);
        hand_over(py);
        Ok(Self { core: core?, metrics_port })
    }

    /// Descriptor to poll for reading: readable while completions wait.
    fn event_fd(&self) -> i32 {
        self.core.event_fd()
    }

    /// Store chunks. Returns the future id of the batch.
    #[pyo3(signature = (keys, memoryviews, *, variants = None))]
    fn submit_batch_set(
        &self,
        py: Python<'_>,
        keys: Keys,
        memoryviews: &Bound<'_, PyAny>,
        variants: Option<Vec<i128>>,
    ) -> PyResult<u64> {
        let (keep_alive, spans) = export_all(memoryviews, Use::Read)?;
        let spans = with_variants(spans, variants)?;
        py.detach(|| self.core.submit_set(&keys.0, &spans, keep_alive)).map_err(from_submit)
    }

    /// Load chunks. Returns the future id of the batch.
    fn submit_batch_get(
        &self,
        py: Python<'_>,
        keys: Keys,
        memoryviews: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let (keep_alive, spans) = export_all(memoryviews, Use::Fill)?;
        py.detach(|| self.core.submit_get(&keys.0, &spans, keep_alive)).map_err(from_submit)
    }

    /// Ask which keys are stored. Returns the future id of the batch.
    fn submit_batch_exists(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        py.detach(|| self.core.submit_exists(&keys.0)).map_err(from_submit)
    }

    /// Remove keys; True means "not here any more", also for a key that never was. Returns the future id of the batch.
    fn submit_batch_delete(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        py.detach(|| self.core.submit_delete(&keys.0)).map_err(from_submit)
    }

    /// Completions since the last call: (future id, ok, error, one bool per key).
    fn drain_completions(&self, py: Python<'_>) -> Vec<Answer> {
        let coded = self.drain_coded_completions(py).into_iter();
        coded.map(|(id, code, error, results)| (id, code.is_none(), error, results)).collect()
    }

    /// Completions since the last call: (future id, code of the failure or None, error, one bool per key).
    fn drain_coded_completions(&self, py: Python<'_>) -> Vec<CodedAnswer> {
        hand_over(py);
        let mut completions = Vec::new();
        self.core.drain(&mut completions);
        // Dropping a completion releases its buffers, here, with the GIL held.
        completions.into_iter().map(answer).collect()
    }

    /// Finish or drop what is queued, release every buffer, mark the store as closed in order. Idempotent.
    #[pyo3(signature = (timeout_s = 20.0, drain_s = None))]
    fn close<'py>(
        &self,
        py: Python<'py>,
        timeout_s: f64,
        drain_s: Option<f64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let timeout = duration_of("timeout_s", timeout_s)?;
        let drain_s = drain_s.unwrap_or(timeout_s / 2.0);
        if !(0.0..=timeout_s).contains(&drain_s) {
            let message =
                format!("drain_s = {drain_s} is not valid; it takes 0 to timeout_s = {timeout_s}");
            return Err(ConfigError::new_err(message));
        }
        let drain_timeout = Duration::from_secs_f64(drain_s);
        let shutdown = py.detach(|| self.core.close_within(drain_timeout, timeout));
        hand_over(py);
        let result =
            dict_of!(py, shutdown: partial_flush abandoned memory_held timed_out not_durable);
        result.set_item("shutdown_clean", shutdown.clean)?;
        Ok(result)
    }

    /// What opening found and threw out.
    #[getter]
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        recovery_dict(py, self.core.recovery())
    }

    /// State and counters as one flat dict of numbers, strings and bools.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        hand_over(py);
        let stats = py.detach(|| self.core.stats());
        stats_dict(py, stats)
    }

    /// Latencies in buckets: class, phase, (upper bound in us, operations up to it), operations, their sum in us.
    fn latency_histograms(&self, py: Python<'_>) -> Vec<Histogram> {
        let all = py.detach(|| self.core.latency_histograms());
        all.into_iter()
            .map(|one| (one.class, one.phase, one.buckets, one.count, one.sum_us))
            .collect()
    }

    /// Counters in the groups "storage", "writer" and "lookup".
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        hand_over(py);
        let stats = py.detach(|| self.core.stats());
        counters_dict(py, &stats)
    }

    /// Ask how many leading keys are stored. Returns the future id of the batch.
    fn submit_batch_prefix(&self, py: Python<'_>, keys: Keys) -> PyResult<u64> {
        py.detach(|| self.core.submit_prefix(&keys.0)).map_err(from_submit)
    }

    /// Begin an epoch: what was stored in others is missed.
    fn set_epoch(&self, name: &str) {
        self.core.set_epoch(name);
    }

    /// What the epoch of now is in variants.
    fn epoch(&self) -> Variant {
        self.core.epoch()
    }

    /// Pin those of the keys that are stored.
    fn pin(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        py.detach(|| self.core.pin(&keys.0)).map_err(from_submit)
    }

    /// Take pins back.
    fn unpin(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        py.detach(|| self.core.unpin(&keys.0)).map_err(from_submit)
    }

    /// Count a use of each key now, without loading it.
    fn touch(&self, py: Python<'_>, keys: Keys) -> PyResult<Vec<bool>> {
        py.detach(|| self.core.touch(&keys.0)).map_err(from_submit)
    }

    /// Register memory, so that transfers inside it need no page looked up.
    #[pyo3(signature = (memory, length_bytes = None))]
    fn register_memory(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        length_bytes: Option<usize>,
    ) -> PyResult<RegisteredMemory> {
        let registered = register(py, &self.core, memory, length_bytes);
        hand_over(py);
        registered
    }

    /// What each namespace takes.
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let usage = py.detach(|| self.core.usage()).map_err(from_submit)?;
        usage_dict(py, usage)
    }

    /// Keys of a namespace and their states, and where to go on.
    #[pyo3(signature = (namespace, cursor = 0, limit = 1000))]
    fn keys(
        &self,
        py: Python<'_>,
        namespace: &str,
        cursor: usize,
        limit: usize,
    ) -> PyResult<KeyPage> {
        let (keys, next) =
            py.detach(|| self.core.keys(namespace, cursor, limit)).map_err(from_submit)?;
        Ok((keys.into_iter().map(|(key, state)| (key, state.name())).collect(), next))
    }

    /// Remove everything of a namespace that is not pinned.
    fn purge<'py>(&self, py: Python<'py>, namespace: &str) -> PyResult<Bound<'py, PyDict>> {
        let purged = py.detach(|| self.core.purge(namespace)).map_err(from_submit)?;
        Ok(dict_of!(py, purged: keys bytes pinned))
    }

    /// Change limits of the open store: capacity, ttl, quotas.
    #[pyo3(signature = (*, capacity = None, ttl = None, quotas = None))]
    fn change_limits(
        &self,
        py: Python<'_>,
        capacity: Option<&Bound<'_, PyAny>>,
        ttl: Option<&Bound<'_, PyAny>>,
        quotas: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let given = [("capacity", capacity), ("ttl", ttl), ("quotas", quotas)].into_iter();
        let given = given.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let options: Vec<_> =
            given.map(|(name, value)| Ok((name, option_value(value)?))).collect::<PyResult<_>>()?;
        let changed = py.detach(|| self.core.change_limits(options)).map_err(from_limits);
        hand_over(py);
        changed
    }

    /// The limits as they are now.
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = py.detach(|| self.core.limits()).map_err(from_submit)?;
        let StoreLimits { capacities, ttl, quotas } = limits;
        let dict = PyDict::new(py);
        let (by_path, by_name) = (PyDict::new(py), PyDict::new(py));
        capacities
            .iter()
            .try_for_each(|(path, bytes)| by_path.set_item(path.as_os_str(), bytes))?;
        quotas.iter().try_for_each(|(name, bytes)| by_name.set_item(name, bytes))?;
        dict.set_item("capacity_bytes", by_path)?;
        dict.set_item("ttl_s", ttl.map(|ttl| ttl.as_secs_f64()))?;
        dict.set_item("quota_bytes", by_name)?;
        Ok(dict)
    }

    /// Take out what has expired, now.
    fn expire(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.core.expire()).map_err(from_submit)
    }

    /// Compare everything with everything.
    fn check<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let check = py.detach(|| self.core.check()).map_err(from_submit)?;
        Ok(dict_of!(py, check: keys stored_bytes moving_bytes reserved_bytes problems))
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        py.detach(|| self.core.close());
        hand_over(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let config = self.core.config();
        let (capacity_bytes, state) = if self.core.is_closed() {
            (config.capacity_bytes(), "closed".to_owned())
        } else {
            let stats = py.detach(|| self.core.stats());
            (stats.capacity_bytes, format!("{} keys, {} bytes", stats.keys, stats.stored_bytes))
        };
        let paths: Vec<_> = config.paths.iter().map(|path| format!("{path:?}")).collect();
        format!("kvring.Connector(path={}, capacity={capacity_bytes}): {state}", paths.join(", "))
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        // Closing waits for the disk: other Python threads go on meanwhile.
        Python::attach(|py| py.detach(|| self.core.close()));
    }
}

fn answer(mut completion: Completion) -> CodedAnswer {
    let (error, results) = (mem::take(&mut completion.error), mem::take(&mut completion.results));
    (completion.future_id, code_of(&completion), error, results)
}
