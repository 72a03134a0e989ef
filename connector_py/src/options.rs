//! Options from Python values to the core and back.

use kvring::{OPTIONS, OptionValue};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

/// A value as the core takes it. Paths (`os.PathLike`) become strings.
pub(crate) fn option_value(name: &str, value: &Bound<'_, PyAny>) -> PyResult<OptionValue> {
    // bool before int: it is a subclass of it.
    if let Ok(boolean) = value.cast::<PyBool>() {
        return Ok(OptionValue::Boolean(boolean.is_true()));
    }
    if let Ok(integer) = value.cast::<PyInt>() {
        return Ok(OptionValue::Integer(integer.extract()?));
    }
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ok(OptionValue::Float(float.value()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(OptionValue::Text(text.extract()?));
    }
    let path = value.py().import("os")?.call_method1("fspath", (value,)).map_err(|_| {
        let kind = value.get_type();
        PyTypeError::new_err(format!(
            "option '{name}' takes a string, a number or a path, not {kind}"
        ))
    })?;
    Ok(OptionValue::Text(path.extract()?))
}

/// Every option that Connector takes: name -> {unit, default, range, meaning}.
#[pyfunction]
pub(crate) fn options(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for spec in OPTIONS {
        let one = PyDict::new(py);
        one.set_item("unit", spec.unit)?;
        one.set_item("default", spec.default)?;
        one.set_item("range", spec.range)?;
        one.set_item("meaning", spec.meaning)?;
        all.set_item(spec.name, one)?;
    }
    Ok(all)
}
