//! The load generator of `kvring bench`, for Python: conversion only.

use std::time::Duration;

use kvring::OpenError;
use kvring_loadgen::{BENCH_OPTIONS, BenchError, PhaseReport, Plan, Run};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dicts::dict_of;
use crate::errors::{ConfigError, KvRingError, from_open};
use crate::logging::hand_over;
use crate::options::{config_from, option_values};

/// Every option that BenchPlan takes: name -> {unit, default, range, meaning}.
#[pyfunction]
pub(crate) fn bench_options(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for option in BENCH_OPTIONS {
        let one = dict_of!(py, option: unit default range meaning);
        all.set_item(option.name, one)?;
    }
    Ok(all)
}

/// What a run does, checked.
#[pyclass(module = "kvring._native", frozen)]
pub(crate) struct BenchPlan {
    plan: Plan,
}

#[pymethods]
impl BenchPlan {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let plan = Plan::from_options(option_values(options)?)
            .map_err(|error| ConfigError::new_err(error.to_string()))?;
        Ok(Self { plan })
    }

    /// Number of chunks.
    #[getter]
    fn keys(&self) -> u64 {
        self.plan.keys()
    }

    /// What they take on disk.
    #[getter]
    fn stored_bytes(&self) -> u64 {
        self.plan.stored_bytes()
    }

    /// A capacity that has room for them.
    #[getter]
    fn capacity_bytes(&self) -> u64 {
        self.plan.capacity_bytes()
    }

    /// Every option as it is in force.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let plan = &self.plan;
        let all = dict_of!(py, plan: iodepth batch numjobs rwmixread verify registered seed);
        all.set_item("rw", plan.rw.name())?;
        all.set_item("bs", plan.sizes.to_string())?;
        all.set_item("size", plan.size_bytes)?;
        all.set_item("runtime", plan.runtime.map(|runtime| runtime.as_secs_f64()))?;
        all.set_item("align", plan.align_bytes)?;
        Ok(all)
    }
}

/// A run that has been started on a store of its own.
#[pyclass(module = "kvring._native", frozen)]
pub(crate) struct BenchRun {
    run: Run,
}

#[pymethods]
impl BenchRun {
    #[new]
    #[pyo3(
        signature = (plan, path = None, capacity = None, **options),
        text_signature = "(plan, path, capacity, **options)"
    )]
    fn new(
        py: Python<'_>,
        plan: &BenchPlan,
        path: Option<&Bound<'_, PyAny>>,
        capacity: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let config = config_from(py, path, capacity, options)?
            .map_err(|error| from_open(OpenError::Config(error)))?;
        let plan = plan.plan.clone();
        let run = py.detach(|| Run::start(config, plan)).map_err(from_bench);
        hand_over(py);
        Ok(Self { run: run? })
    }

    /// How far it is.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        hand_over(py);
        let progress = self.run.poll();
        let all = dict_of!(py, progress: fraction keys bytes);
        all.set_item("phase", progress.phase.name())?;
        all.set_item("elapsed_s", progress.elapsed.as_secs_f64())?;
        Ok(all)
    }

    /// Ask it to end.
    fn stop(&self) {
        self.run.stop();
    }

    /// Wait for its end; returns whether it has come.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        if !(0.0..=86400.0).contains(&timeout_s) {
            let message = format!("timeout_s = {timeout_s} is not valid; it takes 0 to 86400");
            return Err(ConfigError::new_err(message));
        }
        Ok(py.detach(|| self.run.wait(Duration::from_secs_f64(timeout_s))))
    }

    /// Wait for its end and return what it has measured, once.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = py.detach(|| self.run.finish()).map_err(from_bench);
        hand_over(py);
        let report = report?;
        let all = dict_of!(py, report:
            interrupted failed_keys wrong_chunks damaged_chunks gave_up closed_in_order
            failed_batches messages);
        for (name, phase) in
            [("fill", &report.fill), ("measured", &report.measured), ("check", &report.check)]
        {
            all.set_item(name, phase.as_ref().map(|phase| phase_dict(py, phase)).transpose()?)?;
        }
        all.set_item("has_errors", report.has_errors())?;
        let stats = &report.stats;
        let store = dict_of!(py, stats: engine registered_bytes transfers_fixed);
        store.set_item("capacity_bytes", stats.capacity_bytes)?;
        store.set_item("used_bytes", stats.used_bytes)?;
        store.set_item("direct_io", report.stats.geometry.direct)?;
        let alignment_bytes = report.stats.geometry.memory_alignment_bytes;
        store.set_item("memory_alignment_bytes", alignment_bytes)?;
        for (name, value) in &stats.counters {
            store.set_item(name, value)?;
        }
        all.set_item("store", store)?;
        Ok(all)
    }
}

impl Drop for BenchRun {
    fn drop(&mut self) {
        // It ends when its batches are answered: other Python threads go on meanwhile.
        Python::attach(|py| {
            py.detach(|| {
                self.run.stop();
                while !self.run.wait(Duration::from_secs(60)) {}
            });
        });
    }
}

fn phase_dict<'py>(py: Python<'py>, phase: &PhaseReport) -> PyResult<Bound<'py, PyDict>> {
    let classes = PyDict::new(py);
    for class in &phase.classes {
        let latency = PyDict::new(py);
        for (name, microseconds) in class.latency_us() {
            latency.set_item(name, microseconds)?;
        }
        let one = dict_of!(py, class: batches keys bytes hits misses failed);
        one.set_item("latency_us", latency)?;
        classes.set_item(class.name, one)?;
    }
    let all = PyDict::new(py);
    all.set_item("elapsed_s", phase.elapsed.as_secs_f64())?;
    all.set_item("cpu_user_s", phase.cpu_user.as_secs_f64())?;
    all.set_item("cpu_system_s", phase.cpu_system.as_secs_f64())?;
    all.set_item("bytes", phase.bytes())?;
    all.set_item("classes", classes)?;
    Ok(all)
}

fn from_bench(error: BenchError) -> PyErr {
    match error {
        BenchError::Open(error) => from_open(error),
        BenchError::Plan(error) => ConfigError::new_err(error.to_string()),
        BenchError::Register(_) | BenchError::Thread(_) | BenchError::Defect(_) => {
            KvRingError::new_err(error.to_string())
        }
    }
}
