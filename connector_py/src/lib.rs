//! Python bindings: conversion only; everything else is in the core crate `kvring`.

mod blocking_store;
mod buffers;
mod completed_tasks;
mod connector;
mod dicts;
mod errors;
mod forecast;
mod huge_pages;
mod key_watch;
mod keys;
mod listing;
mod loadgen;
mod logging;
mod memory;
mod memory_tasks;
mod object_tasks;
mod options;
mod status;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// What this binary was made of.
#[pyfunction]
fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("version", env!("CARGO_PKG_VERSION"))?;
    all.set_item("commit", option_env!("KVRING_COMMIT"))?;
    all.set_item("compiler", env!("KVRING_COMPILER"))?;
    all.set_item("target", env!("KVRING_TARGET"))?;
    all.set_item("profile", env!("KVRING_PROFILE"))?;
    all.set_item("format_version", kvring::FORMAT_VERSION)?;
    all.set_item("device_format_version", kvring::DEVICE_FORMAT_VERSION)?;
    Ok(all)
}

/// The native module behind the package `kvring`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::blocking_store::BlockingStore;
    #[pymodule_export]
    use super::buffers::checksum_with_key;
    #[pymodule_export]
    use super::build_info;
    #[pymodule_export]
    use super::connector::Connector;
    #[pymodule_export]
    use super::errors::{
        ClosedError, ConfigError, EngineError, FormatError, InUseError, KvRingError,
        NotFormattedError, SubmitError,
    };
    #[pymodule_export]
    use super::forecast::{forecast_open, format_device};
    #[pymodule_export]
    use super::huge_pages::put_into_huge_pages;
    #[pymodule_export]
    use super::key_watch::KeyWatch;
    #[pymodule_export]
    use super::keys::{
        engine_namespace, is_of_model, object_key_text, part_key, qualified, rank_prefix, salt_of,
    };
    #[pymodule_export]
    use super::listing::StoredChunks;
    #[pymodule_export]
    use super::loadgen::{BenchPlan, BenchRun, bench_options};
    #[pymodule_export]
    use super::memory::RegisteredMemory;
    #[pymodule_export]
    use super::memory_tasks::MemoryTasks;
    #[pymodule_export]
    use super::object_tasks::ObjectTasks;
    #[pymodule_export]
    use super::options::{check_options, options, size_bytes};
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        logging::install();
        let codes = kvring::FailureCode::ALL.map(kvring::FailureCode::name);
        // Of an instance that is about one key or buffer of a batch.
        module.getattr("SubmitError")?.setattr("position", module.py().None())?;
        module.add("ANY_VARIANT", kvring::ANY_VARIANT)?;
        module.add("FAILURE_CODES", PyTuple::new(module.py(), codes)?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
