//! What an open would remove, told to those who ask before they open.

use kvring::{ChunkSum, OpenError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

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
        let path = PyDict::new(py);
        path.set_item("path", one.path)?;
        path.set_item("is_new", one.is_new)?;
        for (name, ChunkSum { keys, bytes }) in [
            ("stored", one.stored),
            ("beyond_capacity", one.beyond_capacity),
            ("expired", one.expired),
            ("moved", one.moved),
            ("stale", one.stale),
        ] {
            path.set_item(name, (keys, bytes))?;
        }
        all.append(path)?;
    }
    Ok(all)
}
