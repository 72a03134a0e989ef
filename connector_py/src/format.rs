//! Making a block device blank.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::errors::from_open;

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
