//! Options from Python values to the core and back.

use std::time::Duration;

use kvring::testing::Tuning;
use kvring::{Config, ConfigError, OPTIONS, OpenError, OptionValue};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::dicts::dict_of;
use crate::errors::{self, from_open};

/// A value as the core takes it. Paths (`os.PathLike`) become strings; what no option takes becomes its own text, so that
/// the core refuses it by name, with what the option does take.
pub(crate) fn option_value(value: &Bound<'_, PyAny>) -> PyResult<OptionValue> {
    let other = || Ok(OptionValue::Other(value.repr()?.to_string_lossy().into_owned()));
    // bool before int: it is a subclass of it.
    if let Ok(boolean) = value.cast::<PyBool>() {
        return Ok(OptionValue::Boolean(boolean.is_true()));
    }
    if let Ok(integer) = value.cast::<PyInt>() {
        return integer.extract().map(OptionValue::Integer).or_else(|_| other());
    }
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ok(OptionValue::Float(float.value()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return text.extract().map(OptionValue::Text).or_else(|_| other());
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let values: PyResult<Vec<_>> =
            value.try_iter()?.map(|value| option_value(&value?)).collect();
        return values.map(OptionValue::List).or_else(|_| other());
    }
    if let Ok(values) = value.cast::<PyDict>() {
        return option_values(Some(values)).map(OptionValue::Map).or_else(|_| other());
    }
    // What stands for a whole number, such as an integer of numpy.
    if let Ok(integer) = value.call_method0("__index__") {
        return integer.extract().map(OptionValue::Integer).or_else(|_| other());
    }
    let path = value.py().import("os")?.call_method1("fspath", (value,));
    match path.and_then(|path| path.extract()) {
        Ok(path) => Ok(OptionValue::Text(path)),
        Err(_) => other(),
    }
}

/// Options by name as the core takes them.
pub(crate) fn option_values(
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<(String, OptionValue)>> {
    let one = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        Ok((name.extract()?, option_value(&value)?))
    };
    options.into_iter().flatten().map(one).collect()
}

/// The configuration of a store, from the arguments of a constructor. What is missing the core refuses.
pub(crate) fn config_from(
    py: Python<'_>,
    path: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Result<Config, ConfigError>> {
    let mut all = Vec::new();
    for (name, value) in [("path", path), ("capacity", capacity)] {
        if let Some(value) = value {
            all.push((name.to_owned(), option_value(value)?));
        }
    }
    all.extend(option_values(options)?);
    match Config::from_options(all) {
        Ok(mut config) => tune(py, &mut config.tuning).map(|()| Ok(config)),
        refused => Ok(refused),
    }
}

/// Applies what tests and benchmarks set beside the options: a JSON object in the environment, for child processes too.
fn tune(py: Python<'_>, tuning: &mut Tuning) -> PyResult<()> {
    let Ok(text) = std::env::var("KVRING_TUNING") else { return Ok(()) };
    let settings = py.import("json")?.call_method1("loads", (text,))?;
    for (name, value) in settings.cast::<PyDict>()?.iter() {
        macro_rules! tuned {
            ($($name:ident)+) => {
                match name.extract::<String>()?.as_str() {
                    $(stringify!($name) => tuning.$name = value.extract()?,)+
                    "set_max_wait_ms" => {
                        tuning.set_max_wait = Duration::from_millis(value.extract()?);
                    }
                    "flush_period_ms" => {
                        tuning.flush_period = Duration::from_millis(value.extract()?);
                    }
                    other => {
                        return Err(PyKeyError::new_err(format!("KVRING_TUNING has no '{other}'")));
                    }
                }
            };
        }
        tuned!(high_watermark low_watermark admit_after max_io_bytes queue_depth in_flight_bytes
            set_in_flight_bytes set_in_flight_between_loads_bytes set_in_flight_while_loading_bytes
            set_queue_operations write_streams);
    }
    Ok(())
}

/// Read options as Connector does, look at what the paths are, and open nothing.
#[pyfunction]
#[pyo3(signature = (path, capacity, **options))]
pub(crate) fn check_options(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    capacity: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let config = config_from(py, Some(path), Some(capacity), options)?;
    let config = config.map_err(OpenError::Config);
    config.and_then(|config| kvring::check_places(&config)).map_err(from_open)
}

/// Read a number of bytes as every option that is a size does.
#[pyfunction]
pub(crate) fn size_bytes(text: &str) -> PyResult<u64> {
    kvring::size_bytes(text).map_err(errors::ConfigError::new_err)
}

/// Every option that Connector takes: name -> {unit, default, range, meaning}.
#[pyfunction]
pub(crate) fn options(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for spec in OPTIONS {
        let one = dict_of!(py, spec: unit default range meaning);
        all.set_item(spec.name, one)?;
    }
    Ok(all)
}
