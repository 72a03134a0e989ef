//! What comes before an open: what it would remove, and making a block device blank.

use std::path::PathBuf;

use kvring::OpenError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::dicts::dict_of;
use crate::errors::from_open;
use crate::options::config_from;

/// What an open with these options would remove from each path.
#[pyfunction]
#[pyo3(signature = (path, capacity, *, _keeps_misplaced = false, **options))]
pub(crate) fn forecast_open<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    capacity: &Bound<'py, PyAny>,
    _keeps_misplaced: bool,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut config = config_from(py, Some(path), Some(capacity), options)?
        .map_err(|error| from_open(OpenError::Config(error)))?;
    config.keeps_misplaced = _keeps_misplaced;
    let forecasts = py.detach(|| kvring::forecast_open(&config)).map_err(from_open)?;
    let all = PyList::empty(py);
    for one in forecasts {
        let path = dict_of!(py, one: path is_new);
        macro_rules! add {
            ($($name:ident)+) => {
                $(path.set_item(stringify!($name), (one.$name.keys, one.$name.bytes))?;)+
            };
        }
        add!(stored beyond_capacity expired moved stale);
        all.append(path)?;
    }
    Ok(all)
}

/// Make a block device blank, if `agree` says yes to what it holds.
#[pyfunction]
#[pyo3(signature = (path, discard, agree))]
pub(crate) fn format_device(
    py: Python<'_>,
    path: PathBuf,
    discard: bool,
    agree: Py<PyAny>,
) -> PyResult<bool> {
    let mut failed = None;
    let outcome = py.detach(|| {
        kvring::format_device(&path, discard, |found| {
            let answer = Python::attach(|py| agree.call1(py, (found,))?.extract(py));
            answer.unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
        })
    });
    match failed {
        Some(error) => Err(error),
        None => outcome.map_err(from_open),
    }
}
