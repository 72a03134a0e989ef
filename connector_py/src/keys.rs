//! Keys as Python hands them in, and their syntax, which is that of the core.

use kvring::Identity;
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PySequence, PyString};

use crate::errors::{SubmitError, refused, type_name};

/// Keys as UTF-8, which the str objects keep.
pub(crate) struct Keys(pub(crate) Vec<PyBackedStr>);

impl<'py> FromPyObject<'_, 'py> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(SubmitError::new_err(
                "keys is one str; pass a list of str, also for one key",
            ));
        }
        let Ok(keys) = object.cast::<PySequence>() else {
            let kind = type_name(&object);
            return Err(SubmitError::new_err(format!(
                "keys is of type {kind}; pass a list of str"
            )));
        };
        let keys = keys.try_iter()?.enumerate();
        keys.map(|(position, key)| text(position, &key?)).collect::<PyResult<_>>().map(Self)
    }
}

fn text(position: usize, key: &Bound<'_, PyAny>) -> PyResult<PyBackedStr> {
    let Ok(text) = key.cast::<PyString>() else {
        let kind = type_name(key);
        return Err(SubmitError::new_err(format!("key {position} is of type {kind}; pass a str")));
    };
    PyBackedStr::try_from(text.clone()).map_err(|error| {
        if !error.is_instance_of::<PyUnicodeEncodeError>(key.py()) {
            return error;
        }
        refused(
            key.py(),
            error,
            format!(
                "key {position} has a lone surrogate, which UTF-8 cannot hold; write it in another way, such as \
                 key.encode(errors=\"backslashreplace\").decode()"
            ),
        )
    })
}

/// A key, or a namespace, of an identity as it is stored; `text` itself without one.
#[pyfunction]
pub(crate) fn qualified(identity: Option<&str>, text: &str) -> String {
    let identity = identity.filter(|name| *name != "none").and_then(Identity::named);
    identity.map_or_else(|| text.to_owned(), |identity| identity.qualify(text))
}

/// The namespace of what an engine stores.
#[pyfunction]
pub(crate) fn engine_namespace(engine: &str, digest: &str, model: &str) -> String {
    kvring::engine_namespace(engine, digest, model)
}

/// What the keys of a namespace and a rank begin with.
#[pyfunction]
pub(crate) fn rank_prefix(namespace: &str, rank: u64) -> String {
    kvring::rank_prefix(namespace, rank)
}

/// The key of one part of what an engine stores.
#[pyfunction]
pub(crate) fn part_key(prefix: &str, part: usize, key: &str) -> String {
    kvring::part_key(prefix, part, key)
}

/// The cache salt of a namespace.
#[pyfunction]
pub(crate) fn salt_of(namespace: &str) -> &str {
    kvring::salt_of(namespace)
}
